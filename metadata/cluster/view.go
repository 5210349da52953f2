package cluster

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// Dataset is what the job's registry knows of a dataset. Once Sealed or Failed
// it does not change, except for its plan, but it can be Removed.
type Dataset struct {
	ID          metadata.DatasetID `json:"id"`
	Name        string             `json:"name"`
	Source      string             `json:"source"`
	Coordinator metadata.NodeID    `json:"coordinator"` // the node that leads its stage-in
	Phase       Phase              `json:"phase"`
	Digest      string             `json:"digest,omitempty"` // of the manifest, from Publishing on
	Fill        bool               `json:"fill,omitempty"`   // the files are fetched after the manifest is published
	Replicas    Replicas           `json:"replicas,omitempty"`
	Files       int64              `json:"files"`
	Dirs        int64              `json:"dirs"`
	Bytes       int64              `json:"bytes"`
	SourceSize  int64              `json:"source_size,omitempty"`  // bytes of the source
	SourceBytes int64              `json:"source_bytes,omitempty"` // bytes that were read of it, by all nodes
	// Adopted is the files, by the time the dataset was Sealed, that an earlier job had kept on the nodes, and AdoptedBytes theirs.
	Adopted      int64         `json:"adopted,omitempty"`
	AdoptedBytes int64         `json:"adopted_bytes,omitempty"`
	Skipped      int64         `json:"skipped,omitempty"` // things of the source that could not be read and were left out, as the user wanted
	Missing      int64         `json:"missing,omitempty"` // files that the source did not give by the time the dataset was Sealed
	Error        string        `json:"error,omitempty"`   // why it Failed
	Started      metadata.Time `json:"started,omitempty"`
	Spec         string        `json:"spec,omitempty"`    // the request, as the daemons write it, for a takeover; "" is not known
	Attempt      int           `json:"attempt,omitempty"` // how often the stage-in was started again, or taken over
	Reading      bool          `json:"reading,omitempty"` // files are being read, or were: it is taken over, not started again
	Sealed       metadata.Time `json:"sealed,omitempty"`
	Plan         string        `json:"plan,omitempty"` // digest of its access plan; "": none
}

// MaxAttempts is how often a stage-in is started at most: its source may be what kills the
// coordinators.
const MaxAttempts = 8

// CanRestart reports whether d, whose coordinator is lost, can be started again or taken
// over.
func (d Dataset) CanRestart() bool {
	return d.Phase == Staging && d.Spec != "" && d.Attempt < MaxAttempts
}

// Current is the datasets that a user means by their names: the last of each name, unless it
// was Removed.
func Current(all []Dataset) []Dataset {
	last := make(map[string]metadata.DatasetID, len(all))
	for _, d := range all {
		last[d.Name] = max(last[d.Name], d.ID)
	}
	return slices.DeleteFunc(slices.Clone(all), func(d Dataset) bool { return last[d.Name] != d.ID || d.Phase == Removed })
}

// View is what the job's control group agrees on. Like a Map it is a value:
// whoever changes one makes a new one, with a higher Version.
type View struct {
	Version  uint64    `json:"version"` // rises with every change; 0 is "nothing agreed yet"
	Map      Map       `json:"map"`
	Datasets []Dataset `json:"datasets,omitempty"` // by ID
	Closing  bool      `json:"closing,omitempty"`  // the job ends; daemons may go
	// Copied: a directory has asked for two copies (metadata.Layout.Copies), so each home has a partner.
	Copied bool `json:"copied,omitempty"`
}

// Active is the dataset with that name that has not ended; there is at most one.
func (v View) Active(name string) (Dataset, bool) {
	for _, d := range v.Datasets {
		if d.Name == name && !d.Phase.Ended() {
			return d, true
		}
	}
	return Dataset{}, false
}

// Dataset is the dataset with that id.
func (v View) Dataset(id metadata.DatasetID) (Dataset, bool) {
	for _, d := range v.Datasets {
		if d.ID == id {
			return d, true
		}
	}
	return Dataset{}, false
}
