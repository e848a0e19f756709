#include "tools/cli/client_main.h"

int main(int argc, char** argv) { return starling::cli::ClientMain(argc, argv); }
