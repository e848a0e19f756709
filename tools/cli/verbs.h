// The client's verbs, by topic: each function adds those of one file to the command line, in the
// order of the help text. A verb returns the process's exit code (exit_code.h) or an error, and
// writes data to context.out and everything else to context.err.
#ifndef STARLING_TOOLS_CLI_VERBS_H_
#define STARLING_TOOLS_CLI_VERBS_H_

namespace CLI {
class App;
}

namespace starling::cli {

class CommandLine;

void AddLocal(CommandLine& line);        // local up, local down
void AddSubmit(CommandLine& line);       // submit
void AddJobs(CommandLine& line);         // wait, set, cancel, delete
void AddGet(CommandLine& line);          // get
void AddDescribe(CommandLine& line);     // describe
void AddExplain(CommandLine& line);      // explain, logs
void AddDoctor(CommandLine& line);       // doctor
void AddCurves(CommandLine& line);       // metrics, plot
void AddTrace(CommandLine& line);        // trace
void AddValues(CommandLine& line);       // export, predict, generate
void AddCheckpoints(CommandLine& line);  // checkpoint create, list, delete, verify, export, restore
void AddData(CommandLine& line);         // data inspect
void AddAdvise(CommandLine& line);       // advise batch

void AddRestore(CommandLine& line, CLI::App* group);  // to the group `checkpoint`

}  // namespace starling::cli

#endif  // STARLING_TOOLS_CLI_VERBS_H_
