// Protocol messages as tables, JSON and YAML for users and scripts. Pure.
#ifndef STARLING_TOOLS_CLI_OUTPUT_H_
#define STARLING_TOOLS_CLI_OUTPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/message_json.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "nlohmann/json.hpp"
#include "proto/job.pb.h"

namespace starling::cli {

enum class Format { kTable, kJson, kYaml };
using Rows = std::vector<std::vector<std::string>>;  // of a table

std::string JsonText(const nlohmann::ordered_json& value);  // indented, ends with a newline
std::string YamlText(const nlohmann::ordered_json& value);  // ends with a newline

// As `format` says, which is not kTable.
std::string FormatText(Format format, const nlohmann::ordered_json& value);

// What people wrote, for a terminal: control characters as \n, \t or \xNN, since they could move
// the cursor or forge a line. `lines`: line ends stay.
std::string PrintableText(absl::string_view text, bool lines = false);

// Columns padded with spaces, two between; no trailing spaces; the first row is the heading. Cells
// as PrintableText gives them.
std::string TableText(const Rows& rows);

// The cluster's warnings, one line "warning: ..." each.
std::string WarningsText(const google::protobuf::RepeatedPtrField<std::string>& warnings);

std::string CountText(uint64_t count);         // 1199882 -> "1,199,882"
std::string PolicyText(const Policy& policy);  // "ssp(2)"
std::string DurationText(double seconds);      // "0.4s", "42s", "1m12s", "3h05m"
std::string BytesText(uint64_t bytes);         // "4.6 MiB"

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_OUTPUT_H_
