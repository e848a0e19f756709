// page.html as a string.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_STATUS_PAGE_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_STATUS_PAGE_H_

namespace starling {

extern const char kStatusPage[];

}  // namespace starling

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_STATUS_PAGE_H_
