#include "common/control/shard_orders.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

ShardJob Job(uint64_t uid, uint32_t era = 0) {
  ShardJob job;
  job.mutable_run()->set_job_uid(uid);
  job.mutable_run()->set_era(era);
  return job;
}

TEST(ShardOrderBook, ChangesBecomeTheWhole) {
  ShardOrderBook book;
  ShardOrders first;
  ShardJob job = Job(7);
  job.mutable_job()->mutable_spec()->set_name("seven");
  job.add_partitions()->set_partition(3);
  job.mutable_roster()->set_number(1);
  job.set_epoch(0);
  *first.add_jobs() = job;
  *first.add_jobs() = Job(8);
  ShardOrderBook::Changes changes = book.Take(first);
  ASSERT_EQ(changes.jobs.size(), 2u);
  EXPECT_EQ(changes.jobs[0].job().spec().name(), "seven");
  EXPECT_FALSE(book.jobs().at(7).has_job()) << "a description may be long, and is not kept";

  ShardOrders second;
  ShardJob news = Job(7);
  news.set_partitions_unchanged(true);
  news.set_roster_unchanged(true);
  news.set_epoch(5);
  *second.add_jobs() = news;
  *second.add_dropped() = Job(8).run();
  *second.add_dropped() = Job(9).run();  // was never ordered here
  changes = book.Take(second);
  ASSERT_EQ(changes.jobs.size(), 1u);
  EXPECT_FALSE(changes.jobs[0].has_job());
  EXPECT_EQ(changes.jobs[0].epoch(), 5u);
  ASSERT_EQ(changes.jobs[0].partitions_size(), 1);
  EXPECT_EQ(changes.jobs[0].partitions(0).partition(), 3u);
  EXPECT_EQ(changes.jobs[0].roster().number(), 1u);
  ASSERT_EQ(changes.dropped.size(), 2u) << "of a job that is over only its end was told";
  EXPECT_EQ(changes.dropped[0].job_uid(), 8u);
  EXPECT_EQ(changes.dropped[1].job_uid(), 9u);
  EXPECT_EQ(book.jobs().size(), 1u);

  ShardOrders third;
  ShardJob over = Job(7);
  over.set_over(true);
  *third.add_jobs() = over;
  changes = book.Take(third);
  ASSERT_EQ(changes.jobs.size(), 1u);
  EXPECT_TRUE(changes.jobs[0].over());
  EXPECT_TRUE(book.jobs().empty()) << "nothing is kept of a job that is over";
  book.Take(first);
  book.Clear();
  EXPECT_TRUE(book.jobs().empty());
}

TEST(ShardOrderBook, NothingOfAnEarlierEraIsUnchanged) {
  ShardOrderBook book;
  ShardOrders orders;
  *orders.add_jobs() = Job(7);
  orders.mutable_jobs(0)->add_partitions()->set_partition(3);
  book.Take(orders);
  ShardOrders later;
  ShardJob news = Job(7, 1);
  news.set_partitions_unchanged(true);
  *later.add_jobs() = news;
  const ShardOrderBook::Changes changes = book.Take(later);
  ASSERT_EQ(changes.jobs.size(), 1u);
  EXPECT_EQ(changes.jobs[0].partitions_size(), 0);
}

// The drop of an era is repeated until the shard has seen it, also behind orders for the next one.
TEST(ShardOrderBook, WhatComesLateOfAnEarlierEraChangesNothing) {
  ShardOrderBook book;
  ShardOrders orders;
  *orders.add_jobs() = Job(7, 2);
  book.Take(orders);
  ShardOrders late;
  *late.add_dropped() = Job(7, 1).run();
  *late.add_jobs() = Job(7, 1);
  ShardJob over = Job(7, 1);
  over.set_over(true);
  *late.add_jobs() = over;
  const ShardOrderBook::Changes changes = book.Take(late);
  EXPECT_TRUE(changes.jobs.empty());
  ASSERT_EQ(changes.dropped.size(), 1u);
  EXPECT_EQ(changes.dropped[0].era(), 1u);
  EXPECT_EQ(book.jobs().at(7).run().era(), 2u);
  ShardOrders drop;
  *drop.add_dropped() = Job(7, 2).run();
  book.Take(drop);
  EXPECT_TRUE(book.jobs().empty());
}

}  // namespace
}  // namespace starling
