// A process that measures its training speed on request, in turns with another.
#ifndef STARLING_TOOLS_BUNDLE_CONTENDER_H_
#define STARLING_TOOLS_BUNDLE_CONTENDER_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/bundle/check_parts.h"

namespace starling::bundle {

// compute_bench or torch_peer.py: describes itself in one line of JSON, then answers each line of
// its input with {"units": ..., "seconds": ...}. Main thread only.
class Contender {
 public:
  // Blocks until it has described itself. `name` names its log. kInternal with its last output,
  // kDeadlineExceeded at the site's deadline.
  static absl::StatusOr<std::unique_ptr<Contender>> Start(const Site& site, const std::string& name,
                                                          const std::vector<std::string>& argv);
  ~Contender();  // ends its input, and kills it if it does not end soon
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  const nlohmann::json& about() const { return about_; }
  // Units per second of one request. Errors as Start.
  absl::StatusOr<double> Rate(const std::string& request);

 private:
  Contender(const Site& site, std::string name) : site_(site), name_(std::move(name)) {}
  absl::StatusOr<nlohmann::json> Answer();

  const Site& site_;
  const std::string name_;
  int input_ = -1;  // both ends of a FIFO, which keeps it open without a writer
  pid_t pid_ = -1;  // -1: it has ended
  size_t answers_ = 0;
  nlohmann::json about_;
};

}  // namespace starling::bundle

#endif  // STARLING_TOOLS_BUNDLE_CONTENDER_H_
