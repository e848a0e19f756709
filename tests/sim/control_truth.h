// The coordinator's promises, checked against what it answered.
#ifndef STARLING_TESTS_SIM_CONTROL_TRUTH_H_
#define STARLING_TESTS_SIM_CONTROL_TRUTH_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/types.h"
#include "tests/sim/world.h"

namespace starling::sim {

class ControlTruth {
 public:
  explicit ControlTruth(World* world) : world_(world) {}

  void OnStarted(Generation generation);
  void OnRegistered(uint64_t nonce, uint32_t id, Incarnation incarnation);
  void OnSubmitted(uint64_t uid, const std::string& name);  // acked
  void OnDeleted(uint64_t uid);                             // acked
  void OnListed(const std::vector<std::pair<uint64_t, std::string>>& jobs, Generation generation);

 private:
  World* const world_;
  Generation last_;
  std::map<Incarnation, uint64_t> incarnations_;
  std::map<uint64_t, std::string> submitted_;
};

}  // namespace starling::sim

#endif  // STARLING_TESTS_SIM_CONTROL_TRUTH_H_
