#include "common/control/worker_orders.h"

namespace starling {

void CompleteOrders(WorkerOrders before, WorkerOrders& orders) {
  // A description is sent once for a run.
  const bool same =
      orders.run().job_uid() == before.run().job_uid() && orders.run().era() == before.run().era();
  if (orders.has_run() && same && !orders.has_job() && before.has_job())
    orders.mutable_job()->Swap(before.mutable_job());
  if (orders.views_unchanged()) orders.mutable_views()->Swap(before.mutable_views());
  if (orders.roster_unchanged()) orders.mutable_roster()->Swap(before.mutable_roster());
  orders.clear_views_unchanged();
  orders.clear_roster_unchanged();
}

}  // namespace starling
