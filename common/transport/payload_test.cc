#include "common/transport/payload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "common/transport/payload_copies.h"

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

// The sender changes a shared payload while it is read: what was seen is what is kept.
TEST(PayloadCopies, WhatWasSeenIsWhatIsKept) {
  PayloadCopies copies;
  std::mt19937 random(3);
  for (const size_t size : {1u, 16384u, 16385u, 100'000u, 40'000u}) {
    std::vector<uint8_t> segment(size);
    for (uint8_t& byte : segment) byte = static_cast<uint8_t>(random());
    const auto owner = std::make_shared<int>(0);
    const ReceivedPayload::Piece piece(segment.data(), size);
    ReceivedPayload payload(absl::MakeConstSpan(&piece, 1), owner, /*shared=*/true);
    EXPECT_TRUE(payload.shared());
    std::vector<uint8_t> seen;
    payload = copies.Take(std::move(payload), [&](ReceivedPayload::Piece run) {
      seen.insert(seen.end(), run.begin(), run.end());
      for (uint8_t& byte : segment) ++byte;
    });
    EXPECT_FALSE(payload.shared());
    EXPECT_EQ(owner.use_count(), 2);  // the copy has the payload's credit
    ASSERT_EQ(payload.size(), size);
    ASSERT_EQ(payload.pieces().size(), 1u);
    EXPECT_EQ(std::memcmp(payload.pieces()[0].data(), seen.data(), size), 0);
    payload = ReceivedPayload();
    EXPECT_EQ(owner.use_count(), 1);
  }
}

TEST(PayloadCopies, MemoryIsReusedAndMayOutliveThem) {
  auto copies = std::make_unique<PayloadCopies>();
  const std::vector<uint8_t> segment(5000, 7);
  const ReceivedPayload::Piece piece(segment);
  const auto take = [&] {
    return copies->Take(ReceivedPayload(absl::MakeConstSpan(&piece, 1), nullptr, true),
                        [](ReceivedPayload::Piece) {});
  };
  ReceivedPayload first = take(), second = take();
  const uint8_t* const data = first.pieces()[0].data();
  EXPECT_NE(data, second.pieces()[0].data());
  first = ReceivedPayload();
  EXPECT_EQ(take().pieces()[0].data(), data);
  copies.reset();
  EXPECT_EQ(second.pieces()[0][4999], 7);
}

TEST(PayloadCopies, OfManyThreadsAreTheirOwn) {
  PayloadCopies copies;
  std::vector<std::thread> threads;
  for (uint8_t number = 1; number <= 3; ++number) {
    threads.emplace_back([&copies, number] {
      for (size_t i = 0; i < 300; ++i) {
        const std::vector<uint8_t> segment(1 + 100 * i, number);
        const ReceivedPayload::Piece piece(segment);
        const ReceivedPayload copy =
            copies.Take(ReceivedPayload(absl::MakeConstSpan(&piece, 1), nullptr, true),
                        [](ReceivedPayload::Piece) {});
        EXPECT_EQ(std::memcmp(copy.pieces()[0].data(), segment.data(), segment.size()), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ReceivedPayloadDeathTest, ASharedOneIsNotReadInPlace) {
  const std::vector<uint8_t> segment(5);
  const ReceivedPayload::Piece piece(segment);
  const ReceivedPayload payload(absl::MakeConstSpan(&piece, 1), nullptr, true);
  EXPECT_DEATH(payload.pieces(), "read in place");
  EXPECT_DEATH(payload.From(1), "read in place");
}

}  // namespace
}  // namespace starling
