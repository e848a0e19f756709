// The programs contained in starling-bundle, by name.
#ifndef STARLING_TOOLS_BUNDLE_APPLETS_H_
#define STARLING_TOOLS_BUNDLE_APPLETS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace starling {

struct Applet {
  const char* name;  // matches the program's own name or its first argument
  const char* what;  // description for users
  int (*main)(int argc, char** argv);
};

absl::Span<const Applet> Applets();

// nullptr: no program has this name.
const Applet* FindApplet(absl::string_view name);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_APPLETS_H_
