package stagein

// To find places in the middle of members of gzip takes a part of the time that unpacking does. So they are as
// close to each other as who reads files through wants them only where some files may have to stay in
// the source. Where all seems to fit, they serve who fetches again what a lost node had, and are far apart.

const (
	// insideApart is how many bytes there are between two places in members where all seems to fit. All that
	// lies between them can still be kept (cutMost), if it was not so.
	insideApart = 16 << 20
	// insideTells is how many bytes have to come out of a tar for the rest of it to be thought to be like them.
	insideTells = 64 << 20
)

// outlook is what there is to say whether all fits.
type outlook struct {
	left        int64 // bytes of room, of all nodes
	rest        int64 // bytes that are packed and have not been read
	packed, out int64 // bytes of the tar that were read, and what came out of them
}

// tight reports whether what is left may be too little: what comes may take more than a half of it, since it packs
// up to twice as well as what came, or as well as anything does of which no one knows how well.
func (o outlook) tight() bool {
	ratio := float64(likely)
	if o.out >= insideTells && o.packed > 0 {
		ratio = 2 * float64(o.out) / float64(o.packed)
	}
	return float64(o.rest)*ratio > float64(o.left)/2
}

// inside is how far apart places are that are looked for in members of gzip, when so many bytes of a tar
// have been unpacked to out of them.
func (x *spiller) inside(packed, out int64) int64 {
	o := outlook{left: x.least() * int64(len(x.left)), rest: x.s.cfg.Part.Bytes - x.past - packed, packed: packed, out: out}
	if x.some || x.sure || o.tight() {
		return x.s.lim.apart
	}
	return max(x.s.lim.inside, x.s.lim.apart)
}

// least is what the node has left that has least.
func (x *spiller) least() int64 {
	least := int64(1) << 50 // as of one of which nobody knows
	for _, n := range x.left {
		least = min(least, n)
	}
	return least
}

// look has places looked for as close to each other as they are wanted behind off.
func (x *spiller) look(off int64) {
	if x.from != nil && off-x.looked >= x.s.lim.apart {
		x.looked = off
		x.from.LookInside(x.inside(x.from.Offset(), off))
	}
}
