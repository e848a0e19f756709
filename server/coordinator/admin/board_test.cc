#include "server/coordinator/admin/board.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace starling {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(Board, AsksOnceForManyWhoLook) {
  int asked = 0;
  Board<int> board([&](Board<int>::Answer answer) { answer(std::make_shared<int>(++asked)); }, absl::Hours(1), kLong);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*board.Get(), 1);
  EXPECT_EQ(asked, 1);
}

TEST(Board, AsksAnewWhenItIsOld) {
  int asked = 0;
  Board<int> board([&](Board<int>::Answer answer) { answer(std::make_shared<int>(++asked)); }, absl::ZeroDuration(), kLong);
  EXPECT_EQ(*board.Get(), 1);
  EXPECT_EQ(*board.Get(), 2);
}

TEST(Board, AnOwnerThatIsSilentIsNotAskedAgainNorWaitedForLong) {
  std::vector<Board<int>::Answer> open;
  Board<int> board([&](Board<int>::Answer answer) { open.push_back(std::move(answer)); }, absl::Hours(1),
                   absl::Milliseconds(1));
  EXPECT_EQ(board.Get(), nullptr);
  EXPECT_EQ(board.Get(), nullptr);
  ASSERT_EQ(open.size(), 1u);
  open[0](std::make_shared<int>(7));
  EXPECT_EQ(*board.Get(), 7);
}

TEST(Board, NoAnswerIsAskedForAgain) {
  int asked = 0;
  Board<int> board([&](Board<int>::Answer answer) { answer(++asked == 1 ? nullptr : std::make_shared<int>(asked)); },
                   absl::Hours(1), kLong);
  EXPECT_EQ(board.Get(), nullptr);
  EXPECT_EQ(*board.Get(), 2);
}

TEST(Board, TheAnswerMayComeFromAnotherThread) {
  std::vector<std::thread> threads;
  Board<int> board(
      [&](Board<int>::Answer answer) {
        threads.emplace_back([answer = std::move(answer)] { answer(std::make_shared<int>(3)); });
      },
      absl::Hours(1), kLong);
  EXPECT_EQ(*board.Get(), 3);
  for (std::thread& thread : threads) thread.join();
}

TEST(Board, AnAnswerMayComeWhenNobodyIsThere) {
  Board<int>::Answer late;
  {
    Board<int> board([&](Board<int>::Answer answer) { late = std::move(answer); }, absl::Hours(1), absl::ZeroDuration());
    EXPECT_EQ(board.Get(), nullptr);
  }
  late(std::make_shared<int>(1));
}

}  // namespace
}  // namespace starling
