#include "server/coordinator/coordinator_main.h"

int main(int argc, char** argv) { return starling::coordinator::CoordinatorMain(argc, argv); }
