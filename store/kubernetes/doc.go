// Package relockk8s keeps locks in Kubernetes, in Leases of the API group coordination.k8s.io:
//
//	clients, err := kubernetes.NewForConfig(config)
//	...
//	s, err := relockk8s.New(clients.CoordinationV1().Leases("orders"))
//	...
//	client, err := relock.Open(s)
//
// # Layout
//
// The lock "import" is the Lease "import" in the namespace. The Lease is there while a hold has the
// lock, and until the next hold gets the lock if the holder has died. holderIdentity is the ID of
// the hold, leaseDurationSeconds the lease with its delay, rounded up, and renewTime the time of
// the last write by the clock of the writer, for people to read. The annotation relock/hold has the
// exact lease, the count and the token. The label relock/client names the client.
//
// A Lease of another program is held by its holderIdentity.
//
// # Guards
//
// A hold gets the lock when it creates the Lease, or when it updates a Lease that nobody holds.
// Each update and each delete names the resourceVersion and the UID of the Lease as read, and the
// API server refuses the command if either differs. Both are needed: an update of a Lease that was
// deleted meanwhile creates the Lease anew, whatever the resourceVersion, unless the UID is named.
// So a command that runs late or twice touches no newer hold.
//
// # Leases
//
// No clocks are compared. A process counts a lease from the moment when it has first read that
// version of the Lease, so it never counts a lease from before the holder has sent the write. A
// process that has not read the Lease before waits for a whole lease.
//
// # Tokens
//
// The fencing token is the resourceVersion of the write that gave the lock to the hold, as a
// number: the revision of the etcd of the API server, which grows with each write. The first
// renewal keeps the token in the annotation.
package relockk8s
