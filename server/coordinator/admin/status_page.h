// page.html as a string.
#ifndef STARLING_SERVER_COORDINATOR_ADMIN_STATUS_PAGE_H_
#define STARLING_SERVER_COORDINATOR_ADMIN_STATUS_PAGE_H_

namespace starling::coordinator {

extern const char kStatusPage[];

}  // namespace starling::coordinator

#endif  // STARLING_SERVER_COORDINATOR_ADMIN_STATUS_PAGE_H_
