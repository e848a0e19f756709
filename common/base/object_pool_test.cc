#include "common/base/object_pool.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace starling {
namespace {

struct Note {
  std::string text;
  int recycled = 0;
  void Recycle() {
    text.clear();
    ++recycled;
  }
};

TEST(ObjectPool, GivesTheSameObjectAgainWithItsMemory) {
  ObjectPool<Note> notes;
  std::shared_ptr<Note> first = notes.Get();
  const Note* const place = first.get();
  first->text.assign(1000, 'x');
  std::shared_ptr<Note> copy = first;
  first.reset();
  EXPECT_EQ(copy->text.size(), 1000u);
  copy.reset();
  const std::shared_ptr<Note> again = notes.Get();  // the pool has only one
  EXPECT_EQ(again.get(), place);
  EXPECT_EQ(again->recycled, 1);
  EXPECT_EQ(again->text, "");
  EXPECT_GE(again->text.capacity(), 1000u);
}

TEST(ObjectPool, ObjectsInUseAreDistinct) {
  ObjectPool<Note> notes;
  const std::shared_ptr<Note> first = notes.Get();
  const std::shared_ptr<Note> second = notes.Get();
  EXPECT_NE(first.get(), second.get());
}

TEST(ObjectPool, DoublesAndTakesTurns) {
  ObjectPool<Note> notes;
  std::vector<std::shared_ptr<Note>> held;
  std::set<const Note*> places;
  for (int i = 0; i < 5; ++i) held.push_back(notes.Get());
  for (const std::shared_ptr<Note>& note : held) places.insert(note.get());
  held.clear();
  for (int i = 0; i < 8; ++i) places.insert(notes.Get().get());
  EXPECT_EQ(places.size(), 8u);  // 5 were in use; the 3 others take turns
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 8; ++i) held.push_back(notes.Get());
    for (const std::shared_ptr<Note>& note : held) places.insert(note.get());
    held.clear();
  }
  EXPECT_EQ(places.size(), 8u);
}

TEST(ObjectPool, SomeAreThereFromTheFirst) {
  ObjectPool<Note> notes(2);
  std::set<const Note*> places;
  for (int i = 0; i < 4; ++i) places.insert(notes.Get().get());
  EXPECT_EQ(places.size(), 2u);
}

TEST(ObjectPool, AWeakPointerKeepsTheObjectFromItsNextUser) {
  ObjectPool<Note> notes;
  std::shared_ptr<Note> first = notes.Get();
  const Note* const place = first.get();
  std::weak_ptr<Note> watch = first;
  first.reset();
  EXPECT_EQ(place->recycled, 1);
  EXPECT_EQ(watch.lock(), nullptr);
  EXPECT_NE(notes.Get().get(), place);
  watch.reset();
  const std::shared_ptr<Note> one = notes.Get();
  const std::shared_ptr<Note> other = notes.Get();
  EXPECT_TRUE(one.get() == place || other.get() == place);
}

TEST(ObjectPool, ObjectsOutliveIt) {
  auto notes = std::make_unique<ObjectPool<Note>>();
  std::shared_ptr<Note> note = notes->Get();
  notes.reset();
  note->text = "still here";
  EXPECT_EQ(note->text, "still here");
}

TEST(ObjectPool, TakesBackOnAnyThread) {
  ObjectPool<Note> notes;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        std::shared_ptr<Note> note = notes.Get();
        note->text = "mine";
        EXPECT_EQ(note.use_count(), 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace starling
