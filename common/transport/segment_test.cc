#include "common/transport/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

namespace starling {
namespace {

TEST(Segment, APeerReadsWhatIsWritten) {
  OwnedFd fd;
  auto own = Segment::Create(&fd);
  ASSERT_TRUE(own.ok()) << own.status();
  auto peers = Segment::Open(fd.get());
  ASSERT_TRUE(peers.ok()) << peers.status();
  fd.Reset();
  const std::string text(limits::kSegmentBlockBytes, 'a');
  OutgoingPayload payload;
  payload.head = "head";
  payload.bytes = absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  (*own)->Write(0b1100, payload);
  EXPECT_EQ((*peers)->At(0b1100) - (*peers)->At(1), 2 * limits::kSegmentBlockBytes);
  EXPECT_EQ(std::memcmp((*peers)->At(0b1100), "heada", 5), 0);
  payload.head = "";
  payload.bytes = payload.bytes.first(3);
  (*own)->Write(uint64_t{1} << 63, payload);
  own->reset();  // what is mapped stays
  EXPECT_EQ((*peers)->At(0b1100)[3 + text.size()], 'a');
  EXPECT_EQ((*peers)->At(uint64_t{1} << 63)[2], 'a');
  EXPECT_EQ((*peers)->At(uint64_t{1} << 63)[limits::kSegmentBlockBytes - 1], 0);
}

// The descriptor allows neither writing nor another size.
TEST(Segment, IsItsOwnersToWrite) {
  OwnedFd fd;
  ASSERT_TRUE(Segment::Create(&fd).ok());
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_NE(ftruncate(fd.get(), 0), 0);
  EXPECT_NE(ftruncate(fd.get(), 2 * limits::kSegmentBytes), 0);
  EXPECT_NE(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

TEST(Segment, RefusesWhatIsNotSafeToRead) {
  const auto refusal = [](int fd) { return std::string(Segment::Open(fd).status().message()); };
  const auto memory = [](size_t size, int seals, bool holes = false) {
    OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
    if (!holes) {
      EXPECT_EQ(fallocate(fd.get(), 0, 0, static_cast<off_t>(size)), 0);
    }
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return fd;
  };
  constexpr int kFutureWrite = 0x10;  // F_SEAL_FUTURE_WRITE
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | kFutureWrite;
  EXPECT_EQ(refusal(memory(limits::kSegmentBytes, kSeals).get()), "");
  EXPECT_NE(refusal(memory(limits::kSegmentBytes - 1, kSeals).get()).find("not 8388607"),
            std::string::npos);
  EXPECT_NE(refusal(memory(2 * limits::kSegmentBytes, kSeals).get()).find("bytes"),
            std::string::npos);
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, kFutureWrite}) {
    EXPECT_NE(refusal(memory(limits::kSegmentBytes, kSeals & ~missing).get()).find("its maker"),
              std::string::npos);
  }
  EXPECT_NE(refusal(memory(limits::kSegmentBytes, kSeals, /*holes=*/true).get()).find("holes"),
            std::string::npos);
  if (OwnedFd huge(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
      huge.open()) {
    EXPECT_EQ(ftruncate(huge.get(), limits::kSegmentBytes), 0);
    EXPECT_EQ(fcntl(huge.get(), F_ADD_SEALS, kSeals), 0);
    EXPECT_NE(refusal(huge.get()).find("plain pages"), std::string::npos);
  }
  EXPECT_NE(refusal(OwnedFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)).get()).find("memfd"),
            std::string::npos);
  EXPECT_NE(refusal(OwnedFd(open("/dev/zero", O_RDONLY | O_CLOEXEC)).get()).find("memfd"),
            std::string::npos);
  EXPECT_NE(refusal(-1).find("memfd"), std::string::npos);
}

}  // namespace
}  // namespace starling
