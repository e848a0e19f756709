#include "tools/cli/app.h"

#include "common/config/schema.h"
#include "tools/cli/command_line.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/verbs.h"

namespace starling::cli {

int RunApp(const std::vector<std::string>& args, Context& context) {
  CommandLine line;
  AddLocal(line);
  AddSubmit(line);
  AddJobs(line);
  AddGet(line);
  AddDescribe(line);
  AddExplain(line);
  AddDoctor(line);
  AddCurves(line);
  AddTrace(line);
  AddValues(line);
  AddCheckpoints(line);
  AddData(line);
  AddAdvise(line);
  line.Verb("schema", "print the job file's schema", [](Context& context) {
    context.out << config::SchemaText(config::JobFileSchema());
    return kExitOk;
  });
  line.Verb("version", "print the version", [](Context& context) {
    context.out << VersionText() << "\n";
    return kExitOk;
  });
  return line.Run(args, context);
}

}  // namespace starling::cli
