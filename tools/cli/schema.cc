// starling schema, starling version.
#include "common/config/schema.h"

#include "common/version/version.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/verbs.h"

namespace starling::cli {

int RunSchema(Context& context) {
  context.out << config::SchemaText(config::JobFileSchema());
  return kExitOk;
}

int RunVersion(Context& context) {
  context.out << "starling " << ReleaseVersion() << "\n";
  return kExitOk;
}

}  // namespace starling::cli
