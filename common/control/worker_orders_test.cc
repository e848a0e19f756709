#include "common/control/worker_orders.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

WorkerOrders Whole() {
  WorkerOrders orders;
  orders.mutable_run()->set_job_uid(7);
  orders.mutable_job()->mutable_spec()->set_name("seven");
  orders.add_views()->set_number(3);
  orders.mutable_roster()->set_number(4);
  return orders;
}

TEST(CompleteOrders, HaveWhatIsUnchanged) {
  WorkerOrders news;
  news.mutable_run()->set_job_uid(7);
  news.set_views_unchanged(true);
  news.set_roster_unchanged(true);
  CompleteOrders(Whole(), news);
  EXPECT_EQ(news.SerializeAsString(), Whole().SerializeAsString());
}

TEST(CompleteOrders, TakeNoDescriptionOfAnotherRun) {
  WorkerOrders news;
  news.mutable_run()->set_job_uid(7);
  news.mutable_run()->set_era(1);
  CompleteOrders(Whole(), news);
  EXPECT_FALSE(news.has_job());
}

TEST(CompleteOrders, KeepWhatIsNew) {
  WorkerOrders news = Whole();
  news.mutable_job()->mutable_spec()->set_name("eight");
  news.mutable_views(0)->set_number(5);
  news.mutable_roster()->set_number(6);
  const WorkerOrders sent = news;
  CompleteOrders(Whole(), news);
  EXPECT_EQ(news.SerializeAsString(), sent.SerializeAsString());
  WorkerOrders none;  // the worker is free
  CompleteOrders(Whole(), none);
  EXPECT_EQ(none.SerializeAsString(), "");
}

}  // namespace
}  // namespace starling
