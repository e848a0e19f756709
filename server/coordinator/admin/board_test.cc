#include "server/coordinator/admin/board.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace starling::coordinator {
namespace {

constexpr absl::Duration kLong = absl::Seconds(30);

TEST(Board, AsksOnceForManyWhoLook) {
  int asked = 0;
  Board<int> board([&](Board<int>::Answer answer) { answer(std::make_shared<int>(++asked)); },
                   absl::Hours(1), kLong);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(*board.Get(), 1);
  EXPECT_EQ(asked, 1);
}

TEST(Board, AsksAnewWhenItIsOld) {
  int asked = 0;
  Board<int> board([&](Board<int>::Answer answer) { answer(std::make_shared<int>(++asked)); },
                   absl::ZeroDuration(), kLong);
  EXPECT_EQ(*board.Get(), 1);
  EXPECT_EQ(*board.Get(), 2);
}

TEST(Board, AnOwnerThatIsSilentIsNotAskedAgainNorWaitedForLong) {
  std::vector<Board<int>::Answer> open;
  Board<int> board([&](Board<int>::Answer answer) { open.push_back(std::move(answer)); },
                   absl::Hours(1), absl::Milliseconds(1));
  EXPECT_EQ(board.Get(), nullptr);
  EXPECT_EQ(board.Get(), nullptr);
  ASSERT_EQ(open.size(), 1u);
  open[0](std::make_shared<int>(7));
  EXPECT_EQ(*board.Get(), 7);
}

TEST(Board, ASilentOwnerIsWaitedForOnceHoweverManyLook) {
  constexpr absl::Duration kPatience = absl::Milliseconds(200);
  Board<int> board([](Board<int>::Answer) {}, absl::Hours(1), kPatience);
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 50; ++i) EXPECT_EQ(board.Get(), nullptr);
  EXPECT_GE(absl::Now() - begin, kPatience);
  EXPECT_LT(absl::Now() - begin, 25 * kPatience);
}

TEST(Board, NoAnswerIsAskedForAgain) {
  int asked = 0;
  Board<int> board(
      [&](Board<int>::Answer answer) {
        answer(++asked == 1 ? nullptr : std::make_shared<int>(asked));
      },
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
    Board<int> board([&](Board<int>::Answer answer) { late = std::move(answer); }, absl::Hours(1),
                     absl::ZeroDuration());
    EXPECT_EQ(board.Get(), nullptr);
  }
  late(std::make_shared<int>(1));
}

TEST(Boards, ThoseThatWereAskedForLastAreKept) {
  std::string asked;
  Boards<int> boards(2, [&](const std::string& name) {
    return Board<int>(
        [&asked, name](Board<int>::Answer answer) {
          asked += name;
          answer(std::make_shared<int>(name[0]));
        },
        absl::Hours(1), kLong);
  });
  for (const char* name : {"a", "b", "a", "c", "a"}) EXPECT_EQ(*boards.Get(name), name[0]);
  EXPECT_EQ(asked, "abc");
  boards.Get("b");  // evicted by c
  EXPECT_EQ(asked, "abcb");
  boards.EraseIf([](const std::string& name) { return name == "a"; });
  boards.Get("b");
  boards.Get("a");
  EXPECT_EQ(asked, "abcba");
}

}  // namespace
}  // namespace starling::coordinator
