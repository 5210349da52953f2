package node

// Traffic is the file data that the mount of this node has moved since its start, in bytes, by source and destination.
// Reads served by the kernel's page cache or by passthrough are not counted.
type Traffic struct {
	ReadLocal   int64 `json:"read_local"`
	ReadRemote  int64 `json:"read_remote"`
	ReadSource  int64 `json:"read_source"` // overflow, read through from the source
	WriteLocal  int64 `json:"write_local"`
	WriteRemote int64 `json:"write_remote"`
	Passthrough int64 `json:"passthrough"` // files opened for passthrough
	Prefetched  int64 `json:"prefetched"`  // dataset files that were prefetched into the page cache
}

// Rates is Traffic per second.
type Rates struct {
	ReadLocal   float64 `json:"read_local"`
	ReadRemote  float64 `json:"read_remote"`
	ReadSource  float64 `json:"read_source"`
	WriteLocal  float64 `json:"write_local"`
	WriteRemote float64 `json:"write_remote"`
	Passthrough float64 `json:"passthrough"`
	Prefetched  float64 `json:"prefetched"`
}
