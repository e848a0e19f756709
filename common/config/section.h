// Reads what is in one map of a structure-checked job file; its errors name the place. Defaults are
// the reader's (job_fields.h). Internal to common/config.
#ifndef STARLING_COMMON_CONFIG_SECTION_H_
#define STARLING_COMMON_CONFIG_SECTION_H_

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/schema.h"

namespace starling::config {

// Not thread-safe. Keeps the first error. The structure (keys, types) is already checked, so only
// values can be wrong here.
class Section {
 public:
  // Not assignable: assigning a YAML::Node would overwrite the node that both refer to.
  Section& operator=(const Section&) = delete;
  Section(const Section&) = default;
  Section(YAML::Node node, std::string path, absl::Status* status)
      : node_(node), path_(std::move(path)), status_(status) {}

  bool Has(const std::string& key) const { return node_.IsMap() && node_[key].IsDefined(); }
  Section Child(const std::string& key) const;
  const YAML::Node node() const { return node_; }
  const std::string& path() const { return path_; }
  absl::Status* status() const { return status_; }

  // The strings of a list.
  std::vector<std::string> Texts(const std::string& key) const;
  // The maps of a list.
  std::vector<Section> Items(const std::string& key) const;
  std::vector<double> Numbers(const std::string& key) const;
  std::vector<int64_t> Integers(const std::string& key, Range range) const;

  // Records an error about `key` of this section.
  void Fail(const std::string& key, const std::string& what) const;

 private:
  YAML::Node node_;
  std::string path_;
  absl::Status* status_;
};

}  // namespace starling::config

#endif  // STARLING_COMMON_CONFIG_SECTION_H_
