// tools/bench.sh data: how fast samples are made, each rate against its own limit, in turns.
#include <time.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "common/data_plan/epoch_order.h"
#include "worker/data/data_set.h"
#include "worker/data/image_data_set.h"
#include "worker/data/random_access_file.h"
#include "worker/data/tar_reader.h"

namespace starling {
namespace {

constexpr int64_t kBatch = 128;

// One thing to measure: makes some samples and returns how many.
struct Contender {
  std::string name;
  std::function<absl::StatusOr<int64_t>()> run;
  std::vector<double> rates = {};  // samples/s, one per round
};

// CPU time of this thread: what one core does, whatever else runs on it. Files are in the page
// cache.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Runs all contenders for `seconds` of CPU time each, in turns, `rounds` times.
absl::Status Measure(std::vector<Contender>& contenders, int rounds, double seconds) {
  for (int round = 0; round < rounds; ++round) {
    for (Contender& contender : contenders) {
      int64_t samples = 0;
      const double begin = CpuSeconds();
      double passed = 0;
      do {
        STARLING_ASSIGN_OR_RETURN(const int64_t made, contender.run());
        samples += made;
        passed = CpuSeconds() - begin;
      } while (passed < seconds);
      contender.rates.push_back(static_cast<double>(samples) / passed);
    }
  }
  return absl::OkStatus();
}

// Prints rates, and the ratio to the first contender, round by round.
void Print(const char* title, const std::vector<Contender>& contenders) {
  std::printf("%s\n", title);
  for (const Contender& contender : contenders) {
    const auto [least, most] = std::minmax_element(contender.rates.begin(), contender.rates.end());
    std::vector<double> ratios;
    for (size_t i = 0; i < contender.rates.size(); ++i)
      ratios.push_back(contender.rates[i] / contenders[0].rates[i]);
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    std::printf("  %-44s %11.0f /s (%.0f to %.0f)   ratio %.3f (%.3f to %.3f)\n",
                contender.name.c_str(), Median(contender.rates), *least, *most, Median(ratios),
                *low, *high);
  }
  std::fflush(stdout);
}

absl::Status BenchMnist(const std::string& root, int rounds, double seconds) {
  DataSource source;
  source.mutable_idx()->set_images(root + "/mnist/train-images-idx3-ubyte.gz");
  source.mutable_idx()->set_labels(root + "/mnist/train-labels-idx1-ubyte.gz");
  Normalize normalize;
  normalize.add_mean(0.1307);
  normalize.add_std(0.3081);
  const double begin = CpuSeconds();
  STARLING_ASSIGN_OR_RETURN(const auto data, DataSet::Open(source, normalize, {}));
  std::printf("MNIST inflated and checked, once: %.2f s\n", CpuSeconds() - begin);
  const int64_t pixels = data->sample_elements();
  std::vector<float> inputs(kBatch * pixels);
  std::vector<int32_t> labels(kBatch);
  std::vector<int64_t> ids(kBatch);
  const std::vector<uint8_t> bytes(data->samples() * pixels, 1);
  const EpochOrder order(1, 0, data->samples());
  int64_t position = 0;
  int64_t row = 0;
  std::vector<Contender> contenders = {
      {"the same bytes by memcpy (784 in, 3,136 out)",
       [&]() -> absl::StatusOr<int64_t> {
         auto* out = reinterpret_cast<uint8_t*>(inputs.data());
         for (int64_t i = 0; i < kBatch; ++i) {
           row = (row + 7919) % data->samples();
           for (int copy = 0; copy < 4; ++copy)
             std::memcpy(out + (4 * i + copy) * pixels, &bytes[row * pixels], pixels);
         }
         return kBatch;
       }},
      {"shuffle, normalise, batch", [&]() -> absl::StatusOr<int64_t> {
         for (int64_t& id : ids) id = order.SampleAt(position++ % data->samples());
         STARLING_RETURN_IF_ERROR(data->Gather(ids, nullptr, inputs.data(), labels.data()));
         return kBatch;
       }}};
  STARLING_RETURN_IF_ERROR(Measure(contenders, rounds, seconds));
  Print("MNIST, one core", contenders);
  return absl::OkStatus();
}

// The images of a tar file, in memory.
absl::StatusOr<std::vector<std::vector<uint8_t>>> Images(const std::string& path) {
  STARLING_ASSIGN_OR_RETURN(const auto file, RandomAccessFile::Open(path));
  BlockReader block(*file);
  TarReader tar(*file, &block);
  std::vector<std::vector<uint8_t>> images;
  while (true) {
    STARLING_ASSIGN_OR_RETURN(const auto member, tar.Next());
    if (!member) return images;
    if (member->name.find(".jpg") == std::string::npos) continue;
    images.emplace_back(member->bytes);
    STARLING_RETURN_IF_ERROR(file->ReadAt(member->offset, absl::MakeSpan(images.back())));
  }
}

struct HandleDeleter {
  void operator()(void* handle) const { tjDestroy(handle); }
};

absl::Status BenchImages(const std::string& root, int rounds, double seconds) {
  const std::string path = root + "/cifar10/train-00000.tar";
  DataSource::WebDataset source;
  source.add_shards(path);
  source.set_image("jpg");
  source.set_label("cls");
  DataSetOptions options;
  options.augment.set_crop_padding(4);
  options.augment.set_horizontal_flip(true);
  const double begin = CpuSeconds();
  STARLING_ASSIGN_OR_RETURN(const auto opened, ImageDataSet::Open(source, {}, options));
  const auto* data = static_cast<const ImageDataSet*>(opened.get());
  std::printf("tar file of %lld images indexed, once: %.3f s\n",
              static_cast<long long>(data->samples()), CpuSeconds() - begin);
  options.limits.kept_bytes_max = 0;
  STARLING_ASSIGN_OR_RETURN(const auto opened_again, ImageDataSet::Open(source, {}, options));
  const auto* on_disk = static_cast<const ImageDataSet*>(opened_again.get());
  STARLING_ASSIGN_OR_RETURN(const auto images, Images(path));
  const std::unique_ptr<void, HandleDeleter> handle(tjInitDecompress());
  const int side = static_cast<int>(data->sample_shape()[1]);
  std::vector<uint8_t> pixels(3 * side * side);
  std::vector<float> inputs(kBatch * data->sample_elements());
  std::vector<int32_t> labels(kBatch);
  std::vector<int64_t> ids(kBatch);
  const EpochOrder order(1, 0, data->samples());
  const AugmentDraw draw{1, 0};
  int64_t position = 0;
  const auto next = [&] {
    for (int64_t& id : ids) id = order.SampleAt(position++ % data->samples());
  };
  const auto decode = [&](const ImageDataSet* from) -> absl::StatusOr<int64_t> {
    next();
    for (int64_t id : ids) STARLING_RETURN_IF_ERROR(from->ReadAndDecode(id));
    return kBatch;
  };
  const auto gather = [&](const AugmentDraw* with) -> absl::StatusOr<int64_t> {
    next();
    STARLING_RETURN_IF_ERROR(data->Gather(ids, with, inputs.data(), labels.data()));
    return kBatch;
  };
  std::vector<Contender> contenders = {
      {"libturbojpeg alone, images in memory",
       [&]() -> absl::StatusOr<int64_t> {
         next();
         for (int64_t id : ids) {
           if (tjDecompress2(handle.get(), images[id].data(), images[id].size(), pixels.data(),
                             side, 3 * side, side, TJPF_RGB, 0) != 0) {
             return absl::DataLossError(tjGetErrorStr2(handle.get()));
           }
         }
         return kBatch;
       }},
      {"read from the tar file and decode", [&] { return decode(data); }},
      {"the same, a file too large to be kept", [&] { return decode(on_disk); }},
      {"read, decode, normalise, batch", [&] { return gather(nullptr); }},
      {"read, decode, crop and flip, normalise, batch", [&] { return gather(&draw); }}};
  STARLING_RETURN_IF_ERROR(Measure(contenders, rounds, seconds));
  Print("CIFAR-10 as JPEG in a tar file, one core", contenders);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  int rounds = 7;
  double seconds = 0.5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const bool good = flag == "--rounds"    ? absl::SimpleAtoi(argv[i + 1], &rounds) && rounds > 0
                      : flag == "--seconds" ? absl::SimpleAtod(argv[i + 1], &seconds) && seconds > 0
                                            : false;
    if (!good) {
      std::fprintf(stderr, "usage: data_bench [--rounds N] [--seconds S]\n");
      return 2;
    }
  }
  const char* root = std::getenv("STARLING_DATA");
  if (root == nullptr) {
    std::fprintf(stderr,
                 "data_bench: STARLING_DATA is not set: the folder with mnist/ and cifar10/\n");
    return 77;
  }
  absl::Status status = BenchMnist(root, rounds, seconds);
  if (status.ok()) status = BenchImages(root, rounds, seconds);
  if (status.ok()) return 0;
  std::fprintf(stderr, "data_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace starling

int main(int argc, char** argv) { return starling::Main(argc, argv); }
