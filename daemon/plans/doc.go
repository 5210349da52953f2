// Package plans keeps the access plans of the job's datasets: in which order the ranks read
// them. A dataset has one plan at most.
//
//	Set, Clear    from any node: the registry gets the digest, the body stays in a file
//	Run           follows the registry: fetches the body from any node that has it
//	Plan          for the prefetch of this node
//	Report        exact positions of ranks on this node, from the sampler
//	State         how the plan is followed, on all nodes
//
// # Invariants
//
//   - A plan is used only if its digest is the one that the registry has.
//   - A plan that cannot be fetched costs prefetch and nothing else.
//
// Plans.mu is a leaf; it is not held across a remote call.
//
// The package does not know how files are prefetched.
package plans
