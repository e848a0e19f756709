// Depends on something of another version, or missing.
extern "C" {

int cudnn_of_another_version();

int starling_cuda_open(void*, char*, unsigned long) { return cudnn_of_another_version(); }
}
