// starling-bundle: several programs in one file, for machines where nothing is installed
// (docs/gpu_bundle.md). The name by which it is called, for example through a link, or its first
// argument selects the program.
#include <cstdio>
#include <string>

#include "tools/bundle/applets.h"

namespace {

void PrintApplets(std::FILE* out) {
  std::fprintf(out, "usage: starling-bundle PROGRAM [ARGUMENT...], PROGRAM being one of\n");
  for (const starling::Applet& applet : starling::Applets()) {
    std::fprintf(out, "  %-20s  %s\n", applet.name, applet.what);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 0 ? argv[0] : "";
  if (const auto* applet = starling::FindApplet(path.substr(path.rfind('/') + 1))) {
    return applet->main(argc, argv);
  }
  const std::string first = argc > 1 ? argv[1] : "";
  if (const auto* applet = starling::FindApplet(first)) return applet->main(argc - 1, argv + 1);
  const bool help = first == "--help";
  if (!help && !first.empty()) {
    std::fprintf(stderr, "starling-bundle: there is no program \"%s\"\n", first.c_str());
  }
  PrintApplets(help ? stdout : stderr);
  return help ? 0 : 2;
}
