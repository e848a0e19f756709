// One small call into each system library: a missing or wrong package fails here, by name, and not
// somewhere in the middle of the build.
#include <Random123/philox.h>
#include <benchmark/benchmark.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <spdlog/spdlog.h>
#include <sqlite3.h>
#include <turbojpeg.h>
#include <xxhash.h>
#include <yaml-cpp/yaml.h>
#include <zlib.h>

#include <CLI/CLI.hpp>
#include <dnnl.hpp>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"

namespace starling {
namespace {

TEST(Libraries, Abseil) {
  absl::flat_hash_map<std::string, int> hashed = {{"a", 1}};
  absl::btree_map<int, int> ordered = {{2, 3}};
  absl::InlinedVector<int, 4> inlined = {1, 2};
  absl::Span<const int> span = inlined;
  absl::Notification done;
  done.Notify();
  EXPECT_TRUE(done.HasBeenNotified());
  EXPECT_LT(absl::UnixEpoch(), absl::Now());
  EXPECT_EQ(absl::StrCat(hashed["a"], ordered[2], span.size()), "132");
  EXPECT_EQ(absl::StrFormat("%03d", 7), "007");
  const absl::StatusOr<int> status = absl::NotFoundError("gone");
  EXPECT_EQ(status.status().ToString(), "NOT_FOUND: gone");
}

TEST(Libraries, Json) { EXPECT_EQ(nlohmann::json::parse("{\"a\":[1,2]}")["a"][1], 2); }

TEST(Libraries, Yaml) { EXPECT_EQ(YAML::Load("a: 3")["a"].as<int>(), 3); }

TEST(Libraries, Cli11) {
  CLI::App app;
  int number = 0;
  app.add_option("--number", number);
  app.parse("--number 4");
  EXPECT_EQ(number, 4);
}

TEST(Libraries, Spdlog) { EXPECT_NE(spdlog::default_logger(), nullptr); }

TEST(Libraries, Sqlite) { EXPECT_GE(sqlite3_libversion_number(), 3040000); }

TEST(Libraries, Zlib) {
  const unsigned char text[] = "123456789";
  EXPECT_EQ(crc32(0, text, 9), 0xcbf43926u);
}

TEST(Libraries, TurboJpeg) {
  const tjhandle handle = tjInitDecompress();
  ASSERT_NE(handle, nullptr);
  EXPECT_EQ(tjDestroy(handle), 0);
}

TEST(Libraries, Xxhash) { EXPECT_EQ(XXH64("", 0, 0), 0xef46db3751d8e999ull); }

TEST(Libraries, CryptoSha256) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  ASSERT_EQ(EVP_Digest("abc", 3, digest, &size, EVP_sha256(), nullptr), 1);
  const std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  EXPECT_THAT(hex, testing::StartsWith("ba7816bf8f01cfea"));
}

TEST(Libraries, Dnnl) {
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  EXPECT_EQ(engine.get_kind(), dnnl::engine::kind::cpu);
}

// The first known-answer vector of philox4x32-10.
TEST(Libraries, Random123) {
  const r123::Philox4x32::ctr_type counter = {{0, 0, 0, 0}};
  const r123::Philox4x32::key_type key = {{0, 0}};
  EXPECT_EQ(r123::Philox4x32()(counter, key)[0], 0x6627e8d5u);
}

TEST(Libraries, Benchmark) {
  benchmark::State* state = nullptr;
  EXPECT_EQ(state, nullptr);
  EXPECT_FALSE(benchmark::ReportUnrecognizedArguments(1, nullptr));
}

}  // namespace
}  // namespace starling
