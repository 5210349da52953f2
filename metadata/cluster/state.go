package cluster

import "fmt"

// State is the state of a node. Its text and JSON forms are its name in lower case.
type State uint8

const (
	// Joining is a node that has not reported yet.
	Joining State = iota
	// Up is a node that serves.
	Up
	// Down is a node that was given up: no new data is placed on it, and data that only it has cannot be read.
	Down
	// Leaving is a node that has completed its part of the end of the job.
	Leaving
)

var stateNames = []string{"joining", "up", "down", "leaving"}

// String returns the state's name.
func (s State) String() string { return nameOf(stateNames, "state", uint8(s)) }

// MarshalText returns the state's name.
func (s State) MarshalText() ([]byte, error) { return textOf(stateNames, "state", uint8(s)) }

// UnmarshalText parses a state's name.
func (s *State) UnmarshalText(b []byte) error {
	return valueOf(stateNames, "state", string(b), (*uint8)(s))
}

// Phase is the phase of a dataset. Its text and JSON forms are its name in lower case.
type Phase uint8

const (
	// Staging is a dataset whose files are being read from the source.
	Staging Phase = iota
	// Publishing is a dataset whose manifest is being ingested by the nodes.
	Publishing
	// Filling is a dataset whose tree is on every node, while its files are being fetched; reads fetch missing data
	// first.
	Filling
	// Sealed is a dataset that every node can read completely.
	Sealed
	// Failed is a dataset that could not be staged; Dataset.Error gives the reason.
	Failed
	// Removed is a dataset that the user removed.
	Removed
)

// Ended reports whether a dataset in this phase no longer exists.
func (p Phase) Ended() bool { return p == Failed || p == Removed }

var phaseNames = []string{"staging", "publishing", "filling", "sealed", "failed", "removed"}

// String returns the phase's name.
func (p Phase) String() string { return nameOf(phaseNames, "phase", uint8(p)) }

// MarshalText returns the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return textOf(phaseNames, "phase", uint8(p)) }

// UnmarshalText parses a phase's name.
func (p *Phase) UnmarshalText(b []byte) error {
	return valueOf(phaseNames, "phase", string(b), (*uint8)(p))
}

func nameOf(names []string, kind string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

func textOf(names []string, kind string, v uint8) ([]byte, error) {
	if int(v) >= len(names) {
		return nil, fmt.Errorf("%s %d has no name", kind, v)
	}
	return []byte(names[v]), nil
}

func valueOf(names []string, kind, name string, v *uint8) error {
	for i, n := range names {
		if n == name {
			*v = uint8(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no %s", name, kind)
}
