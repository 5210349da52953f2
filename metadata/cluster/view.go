package cluster

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// Dataset is a dataset in the job's registry. Once Sealed or Failed it does not change, except for its plan, but it can
// still be Removed.
type Dataset struct {
	ID          metadata.DatasetID `json:"id"`
	Name        string             `json:"name"`
	Source      string             `json:"source"`
	Coordinator metadata.NodeID    `json:"coordinator"` // the node that leads its stage-in
	Phase       Phase              `json:"phase"`
	Digest      string             `json:"digest,omitempty"` // of the manifest, from Publishing on
	Fill        bool               `json:"fill,omitempty"`   // files are fetched after the manifest is published
	Replicas    Replicas           `json:"replicas,omitempty"`
	Files       int64              `json:"files"`
	Dirs        int64              `json:"dirs"`
	Bytes       int64              `json:"bytes"`
	SourceSize  int64              `json:"source_size,omitempty"`  // bytes of the source
	SourceBytes int64              `json:"source_bytes,omitempty"` // bytes read from the source, by all nodes
	// Adopted counts the files kept on the nodes by an earlier job, when the dataset was Sealed; AdoptedBytes is their
	// size.
	Adopted      int64         `json:"adopted,omitempty"`
	AdoptedBytes int64         `json:"adopted_bytes,omitempty"`
	Skipped      int64         `json:"skipped,omitempty"` // unreadable source entries, left out at the user's request
	Missing      int64         `json:"missing,omitempty"` // files that the source had not provided when Sealed
	Error        string        `json:"error,omitempty"`   // why it Failed
	Started      metadata.Time `json:"started,omitempty"`
	Spec         string        `json:"spec,omitempty"`    // encoded request, for a takeover; "" is unknown
	Attempt      int           `json:"attempt,omitempty"` // how often the stage-in was restarted or taken over
	Reading      bool          `json:"reading,omitempty"` // file reads have begun: it is taken over, not restarted
	Sealed       metadata.Time `json:"sealed,omitempty"`
	Plan         string        `json:"plan,omitempty"` // digest of its access plan; "": none
}

// MaxAttempts limits how often a stage-in is started: its source may be the reason why the coordinators die.
const MaxAttempts = 8

// CanRestart reports whether d, whose coordinator is lost, can be restarted or taken over.
func (d Dataset) CanRestart() bool {
	return d.Phase == Staging && d.Spec != "" && d.Attempt < MaxAttempts
}

// Current returns the datasets that users refer to by name: the last one of each name, unless it was Removed.
func Current(all []Dataset) []Dataset {
	last := make(map[string]metadata.DatasetID, len(all))
	for _, d := range all {
		last[d.Name] = max(last[d.Name], d.ID)
	}
	return slices.DeleteFunc(slices.Clone(all), func(d Dataset) bool { return last[d.Name] != d.ID || d.Phase == Removed })
}

// View is the state that the job's control group agrees on. Like a Map it is a value: a change makes a new View with a
// higher Version.
type View struct {
	Version  uint64    `json:"version"` // increases with every change; 0 is "nothing agreed yet"
	Map      Map       `json:"map"`
	Datasets []Dataset `json:"datasets,omitempty"` // by ID
	Closing  bool      `json:"closing,omitempty"`  // the job is ending; daemons may exit
	// Copied: a directory has requested two copies (metadata.Layout.Copies), so each home has a partner.
	Copied bool `json:"copied,omitempty"`
}

// Active returns the dataset with that name that has not ended; there is at most one.
func (v View) Active(name string) (Dataset, bool) {
	for _, d := range v.Datasets {
		if d.Name == name && !d.Phase.Ended() {
			return d, true
		}
	}
	return Dataset{}, false
}

// Dataset returns the dataset with that id.
func (v View) Dataset(id metadata.DatasetID) (Dataset, bool) {
	for _, d := range v.Datasets {
		if d.ID == id {
			return d, true
		}
	}
	return Dataset{}, false
}
