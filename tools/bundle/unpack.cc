// starling-unpack: prepares a bundle and runs it (docs/gpu_bundle.md).
//
//   starling-unpack [PROGRAM ARGUMENT...]
//
// Unpacks packed/NAME.gz of its own folder into lib/NAME beside it, and then executes
// `starling-bundle PROGRAM ARGUMENT...`. Linked statically, so it runs where nothing else can.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

[[noreturn]] void Fail(const std::string& what, const char* why) {
  std::fprintf(stderr, "starling-unpack: %s: %s\n", what.c_str(), why);
  std::exit(1);
}
[[noreturn]] void Fail(const std::string& what) { Fail(what, std::strerror(errno)); }

std::string OwnFolder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) Fail("cannot read /proc/self/exe (is /proc mounted?)");
  const std::string own(path, length);
  return own.substr(0, own.rfind('/'));
}

void WriteAll(int file, const char* bytes, size_t count, const std::string& path) {
  while (count > 0) {
    const ssize_t written = write(file, bytes, count);
    if (written < 0) Fail("cannot write " + path);
    bytes += written;
    count -= written;
  }
}

// Renamed last, so that an existing file is complete.
void Unpack(const std::string& packed, const std::string& path) {
  const gzFile in = gzopen(packed.c_str(), "rb");
  if (in == nullptr) Fail("cannot open " + packed);
  const std::string growing = path + ".new." + std::to_string(getpid());
  const int out = open(growing.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0755);
  if (out < 0) Fail("cannot write " + growing);
  std::vector<char> buffer(1 << 20);
  int got;
  while ((got = gzread(in, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
    WriteAll(out, buffer.data(), got, growing);
  }
  if (got < 0 || gzclose(in) != Z_OK || close(out) != 0) {
    unlink(growing.c_str());
    Fail(packed, "damaged, or cut off: copy the bundle again");
  }
  if (rename(growing.c_str(), path.c_str()) != 0) Fail("cannot write " + path);
}

}  // namespace

int main(int, char** argv) {
  const std::string folder = OwnFolder(), packed = folder + "/packed", lib = folder + "/lib";
  if (mkdir(lib.c_str(), 0755) != 0 && errno != EEXIST) {
    Fail("cannot make " + lib + " (copy the bundle to where it can be written)");
  }
  DIR* const files = opendir(packed.c_str());
  if (files == nullptr) Fail("cannot read " + packed);
  while (const dirent* const file = readdir(files)) {
    const std::string name = file->d_name;
    if (name.size() < 4 || name.compare(name.size() - 3, 3, ".gz") != 0) continue;
    Unpack(packed + "/" + name, lib + "/" + name.substr(0, name.size() - 3));
  }
  closedir(files);
  if (argv[1] == nullptr) return 0;
  const std::string bundle = folder + "/starling-bundle";
  execv(bundle.c_str(), argv);
  Fail("cannot run " + bundle);
}
