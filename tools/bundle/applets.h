// The programs that starling-bundle is, by name.
#ifndef STARLING_TOOLS_BUNDLE_APPLETS_H_
#define STARLING_TOOLS_BUNDLE_APPLETS_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace starling {

struct Applet {
  const char* name;  // what it is called by: as the program's name, or as its first argument
  const char* what;  // for people
  int (*main)(int argc, char** argv);
};

absl::Span<const Applet> Applets();

// nullptr: there is none of that name.
const Applet* FindApplet(absl::string_view name);

}  // namespace starling

#endif  // STARLING_TOOLS_BUNDLE_APPLETS_H_
