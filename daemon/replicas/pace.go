package replicas

import (
	"math/bits"
	"sync"
	"time"
)

const (
	leastShare = 1.0 / 16 // of the time in which a maker of replicas transfers, however busy the path
	shareStep  = 1.0 / 16
	mostPause  = time.Second
	measured   = 32 << 10 // bytes; smaller transfers take as long as the processors let them
	agedBy     = 256      // transfers that are none faster raise the fastest time by one part in so many
)

// pacer makes replicas yield to readers, without asking them. Its method is that of LEDBAT (RFC 6817): a
// transfer that takes twice as long as the fastest of its size waited behind the bytes of others,
// so the makers halve the share of time in which they transfer; else they raise it by a step.
type pacer struct {
	mu      sync.Mutex
	fastest [65]time.Duration // guarded by mu; by the bits of the size
	share   float64           // guarded by mu; 0 until the first transfer
}

// pause returns how long to wait after a transfer of n bytes that took so long; of nil, 0.
func (p *pacer) pause(n int, took time.Duration) time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.share == 0 {
		p.share = 1
	}
	if n >= measured {
		best := &p.fastest[bits.Len(uint(n))]
		*best += *best / agedBy
		if *best == 0 || took < *best {
			*best = took
		}
		if took > 2**best {
			p.share = max(p.share/2, leastShare)
		} else {
			p.share = min(p.share+shareStep, 1)
		}
	}
	return min(time.Duration(float64(took)*(1/p.share-1)), mostPause)
}
