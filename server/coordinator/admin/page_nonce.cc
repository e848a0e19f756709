#include "server/coordinator/admin/page_nonce.h"

#include <random>

#include "absl/strings/str_cat.h"

namespace starling::coordinator {

std::string PageNonce() {
  std::random_device entropy;  // the system's entropy source
  std::string nonce;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&nonce, absl::Hex(entropy(), absl::kZeroPad8));
  return nonce;
}

}  // namespace starling::coordinator
