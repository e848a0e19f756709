#include "server/shard/shard_main.h"

int main(int argc, char** argv) { return starling::ShardMain(argc, argv); }
