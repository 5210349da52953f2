// Package plans keeps the access plans of the job's datasets: the order in which the ranks read them. A dataset has at
// most one plan.
//
//	Set, Clear    from any node: the registry gets the digest, the body stays in a file
//	Run           follows the registry: fetches the body from any node with a copy
//	Plan          for the prefetch of this node
//	Report        exact positions of ranks on this node, from the sampler
//	State         the progress of the prefetch that follows the plan, on all nodes
//
// # Invariants
//
//   - A plan is used only if its digest matches the registry's.
//   - A plan that cannot be fetched costs only prefetch.
//
// Plans.mu is a leaf; it is not held across a remote call.
//
// The package does not know how files are prefetched.
package plans
