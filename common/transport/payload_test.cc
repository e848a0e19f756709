#include "common/transport/payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace starling {
namespace {

TEST(ReceivedPayload, CopiesWhereverThePiecesAreCut) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const size_t count = 1 + random() % 5000;
    std::vector<float> floats(count);
    std::iota(floats.begin(), floats.end(), 0.5f);
    const size_t bytes = count * sizeof(float);
    std::vector<uint8_t> memory(bytes + 3);
    uint8_t* const start = memory.data() + round % 4;  // aligned and unaligned
    std::memcpy(start, floats.data(), bytes);
    std::vector<ReceivedPayload::Piece> pieces;
    for (size_t at = 0; at < bytes;) {
      const size_t n = std::min<size_t>(bytes - at, random() % (round % 2 == 0 ? 5 : 9000));
      pieces.emplace_back(start + at, n);
      at += n;
    }
    const ReceivedPayload payload(pieces, nullptr);
    ASSERT_EQ(payload.size(), bytes);
    std::vector<float> copied(floats.size());
    payload.CopyTo(copied.data());
    ASSERT_EQ(copied, floats);
    const size_t begin = random() % bytes, size = random() % (bytes - begin + 1);
    std::vector<uint8_t> part(size + 1, 0xA5);
    payload.CopyTo(begin, size, part.data());
    ASSERT_EQ(std::memcmp(part.data(), start + begin, size), 0);
    ASSERT_EQ(part[size], 0xA5);
    const ReceivedPayload rest = payload.From(begin);
    ASSERT_EQ(rest.size(), bytes - begin);
    std::vector<uint8_t> end(rest.size());
    rest.CopyTo(end.data());
    ASSERT_EQ(std::memcmp(end.data(), start + begin, end.size()), 0);
  }
}

TEST(ReceivedPayload, LastCopyReleasesTheOwner) {
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  ReceivedPayload first({}, std::move(owner));
  {
    const ReceivedPayload second = first;
    first = ReceivedPayload();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace starling
