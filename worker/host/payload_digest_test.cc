#include "worker/host/payload_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace starling {
namespace {

// A shard that writes to its segment after a value was checked changes nothing that is used.
TEST(PayloadDigest, WhatIsUsedIsWhatWasChecked) {
  PayloadCopies copies;
  for (const size_t size : {4u, 16384u, 100'000u}) {
    std::vector<uint8_t> segment(size);
    for (size_t i = 0; i < size; ++i) segment[i] = static_cast<uint8_t>(i * 7);
    const std::vector<uint8_t> sent = segment;
    const ReceivedPayload::Piece piece(segment);
    ReceivedPayload payload(absl::MakeConstSpan(&piece, 1), nullptr, /*shared=*/true);
    EXPECT_EQ(PayloadDigest(payload, copies), XXH3_64bits(sent.data(), sent.size()));
    std::fill(segment.begin(), segment.end(), 0xFF);
    std::vector<uint8_t> used(size);
    payload.CopyTo(used.data());
    EXPECT_EQ(used, sent);
  }
}

// Over the stream a value has any number of pieces, which stay where they are.
TEST(PayloadDigest, OfPiecesIsOfTheirBytes) {
  PayloadCopies copies;
  const std::vector<uint8_t> bytes(1000, 3);
  const absl::Span<const uint8_t> all = bytes;
  const ReceivedPayload::Piece one[] = {all};
  const ReceivedPayload::Piece two[] = {all.first(333), all.subspan(333)};
  for (const absl::Span<const ReceivedPayload::Piece> pieces :
       {absl::MakeConstSpan(one), absl::MakeConstSpan(two)}) {
    ReceivedPayload payload(pieces, nullptr);
    EXPECT_EQ(PayloadDigest(payload, copies), XXH3_64bits(bytes.data(), bytes.size()));
    EXPECT_EQ(payload.pieces()[0].data(), bytes.data());
  }
}

}  // namespace
}  // namespace starling
