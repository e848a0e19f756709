#include "kernels/operator.h"

namespace starling {

const char* DataTypeName(DataType type) {
  switch (type) {
    case DataType::kFp32: return "fp32";
    case DataType::kBf16: return "bf16";
    case DataType::kFp16: return "fp16";
  }
  return "unknown type";
}

}  // namespace starling
