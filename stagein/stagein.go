// Package stagein brings datasets in and takes results out. Its one idea is
// that the nodes read a source together, each byte of it once, and that what is
// read goes to its owner at once.
//
// # Two steps
//
// Where a source tells what is in it without being read, it is staged in two
// steps. Scan finds every file: its path, its attributes, and where its bytes
// are (a manifest.Origin). From that the manifest is made and spread, and the
// whole tree can be read at once. Then each node fetches the files that it owns (a
// Fill), a chunk at a time of those that are striped, in the order that the user
// chose. A read of what is not there is put before all else, and done once: a
// piece has one owner, who fetches it once for all who ask. What a node has is
// in its journal, so that a daemon that starts again goes on where it was; and
// what a lost node had is fetched again by those that are left.
//
// # Neighbours are read together
//
// The members of an archive are small beside a good read, and neighbours belong to
// all nodes. Therefore, where nobody asked for another order than that of the
// source or a random one, an archive is read in runs of 4 MiB (run), each by one
// node for all, in the order of the fill; a node that is done with its runs goes
// on with those that others have not begun. Before it reads one, a node offers
// its pieces to those that are to have them (Claim), and these grant what is
// neither there nor on its way: so each byte is read once, whoever reads a run,
// and a piece that is asked for meanwhile is waited for, or fetched alone. Data
// goes to its owner as it is read, what one reading has for it in few messages (load, as
// in the one pass through an archive that has to be read to be known), where
// each piece is compared with its sum; then the owner is told the sums (Landing),
// and writes its journal. What a run did not bring, for whatever reason, its
// owner fetches by itself; what a lost node, or one that starts again, has
// claimed is nobody's again. Pieces of 1 MiB and more are read by their owners: a
// request for one is large enough, and what goes between nodes costs them processor
// time. So are all pieces, of all runs in their turn, while the source is at hand: when
// it answers as fast as memory does, also to small reads (atHand). With order=seed:S or
// list:FILE each piece is fetched alone, in its turn.
//
// # What is left in the source
//
// What the nodes have no room for stays in the source: a hash of the paths
// chooses, the record says so, and who reads such a file fetches it whole, once
// for all on its node, into a bounded piece of memory (window). What is on a node
// stays there. A file that was read whole, or a chunk of a large one, is compared with its
// checksum, if its record has one: that is where it was unpacked once, to be known. What is not right is read once more;
// then it is EIO, and the node names the file and what to do until it is read right
// (Unreadable).
//
// A reader who waits is not to wait for what is read ahead of him: while readers
// come, and at the beginning, little is under way at the source at a time (gate).
//
// With order=seed:S or list:FILE it is known, too, what the readers of a node read next, once their
// stride is: Forecast tells it to who can have the kernel keep it.
//
// No lock is held while another is taken, but that of residents under that of a Fill or of a Forecast, and those of a recorder and
// of generations under that of a marker.
//
// # A directory
//
// The tree is walked; its files are the origins.
//
// # Tars in two steps
//
// From one header follows where the next is, so the members are found by hops,
// in several stretches of an archive and in several archives at a time (hopper).
// A hop is a round trip to the source, but for small neighbours whose headers are
// in one page; therefore it is done only for 64 MiB of tars and more, where a hop goes over 64 KiB and more on average, as the first 64 members of
// the largest tell, where the user asked for an order, or where there is no
// room for the members, of which a small one takes a page of a disk: then some of them stay
// in the source. The bytes of headers
// are read twice at the most, those of files once. What is found is kept on the disk, a
// block of each stretch in memory, and gone through when the manifest's records are
// written; in memory are what a directory or a zip archive has, what is to be
// filtered, and of what does not fit on the nodes a few words for each file. Of several tars, and of one of which only
// some members are wanted, the manifest says which one has what.
//
// Where the data of a sparse member lies in it is told by its headers, which those who
// fetch it read again, of a striped one for each chunk. Holes cost no disk, but time to sum
// up; a tar with a member of which less than a sixteenth is data is read once, where they
// cost nothing, unless there is no room for all of it.
//
// # The index of a tar
//
// What a scan found is kept as an index (Index, tar.ReadIndex), and the next
// stage-in needs no scan. It says of sparse members where their data lies, too. The index belongs to an archive of that size, time of
// modification, and first and last 16 KiB; one that does not fit, or is damaged, or
// belongs to another user, is named in the log and not used. Nobody has then seen the
// headers, so a member is read with those that stand before it, and is refused
// if they do not say what the index says (manifest.Origin); then the index is removed.
// Directories and links have no bytes that are read: of them the index is believed.
//
// # A tar that is read once
//
// Any other tar is cut into one region for each node at block boundaries, not at
// members. Node k reads its region once, from front to end, and does not wait
// for node k-1 to know where a member begins:
//
//	search     keep what is read, until a block has the checksum of a header;
//	           from that header guess E, an offset at which a member begins
//	speculate  parse from E, store the data at its owners, keep the records back, on the disk
//	verify     when the seam of region k-1 comes, parse from there what was kept
//
// The seam is what a reader needs to go on where another stopped: the offset of
// the first group of headers that is not staged yet, with the bytes of it that
// were read; or the member whose data runs over the end. If the parse of what
// was kept ends exactly at E, then the guess was right, because all that follows
// E was a function of the bytes from E on; the records are written. If it runs
// past E, the guess was wrong (a tar in a tar has headers in its data): what was
// stored is removed, and the region is read again from E, and counted again.
// If no header is found within half of the memory, the node waits for the seam.
//
// A region's seam is given out as soon as it is known: for a member that is
// large, when its header is read; else at the end of the region. A small
// member that is cut travels in the seam, and the next node stages it whole.
//
// # A node that is lost while it reads
//
// Of what is read once, the part of a node that is lost, or whose daemon starts
// again, is read again, by another or by that one (Plan.Again); the other parts stay as they
// are. Where files go does not change meanwhile (Plan.Map), nor does the seam that a
// region has: the node that leads keeps the seams and passes them on, so that it
// does not matter who reads the next region, and when. Each try numbers its inodes by
// itself (Part.Try), so that what the lost one still stores is nobody's; but the member that
// goes on in the next region has the same number in all, as that region's
// reader may be done with it. What a lost node was to hold is not sent to it any more, and it takes
// nothing over if it comes back (Origins.Since): those who stand in for it, or
// it itself, fetch that from the source when the manifest is published. So the
// bytes read are the archive, the part once more, and for a node that is given up
// what it had. If it is the same node, since its daemon was killed, it goes on from its
// last Mark, every 4 MiB of a tar, before which all is stored and recorded: then only what
// was in flight is read again. Of a compressed tar so is what lies between the mark and the last place before it that can be
// begun with (unpack.Start), which is 4 to 16 MiB of what it unpacks to; all before the mark is read again, and not stored,
// where the format has no such place. Who leads may
// be lost, too: another goes on from the plan and the seams that the readers have told,
// which is for package daemon to see to.
//
// What a node has read of the source it counts in a file that outlives its daemon. When
// daemons are killed, the registry says what the source has given, less 64 KiB for each
// at the most, and with what was in flight then, up to 8 MiB, whether it came or not. Of
// nodes that do not come back it has what they had read about a second before.
//
// Not a byte of the source is read twice while the guesses are right, but the
// headers of a sample of a large archive: the first
// block, which MakePlan reads to see what the source is, travels in the plan,
// and what follows the archive's end is read (once) to make sure that nothing
// is lost in silence. So the bytes read are exactly the size of the archive.
//
// # A compressed tar
//
// What is compressed has one reader. The plan has a single part, on a node that
// the hash of the archive's path chooses, so that many archives spread over the
// nodes. That node reads the file, unpacks it (with several processors, where the
// format allows it) and stores its members at their owners, all at once; nothing
// is kept but a few pieces. What the members add up to is bounded by the room that
// the nodes had when the plan was made, since a small file can unpack to anything.
// The stream is read to its very end: its checksums have to be right and nothing
// may follow it.
//
// The tree of such a tar is known when it is unpacked, and not before; to show it
// sooner the archive would have to be read twice. So the one reading stages it,
// and the dataset appears when that has ended, with all its files. If the reader is
// lost before, another begins anew. There is no way to a member but through all before
// it, or from a place on that can be begun with; what does not fit and has none is refused. That is before it
// is read if a few small reads say that it is too large (unpack.Least: xz of one block, or one of more than 64 MiB, zstd of one frame that says its
// size; with spill=fail also other xz, gzip, zstd whose frames
// say their sizes or have a seek table; unpack.LeastBGZF: what bgzip has packed, if the
// index of bgzip -r lies beside it), or if it is too large packed; else when the room is used
// up, and names the node that is full, what it needs and had (Share.full). The message says who
// says so, since that may be wrong. What a lost
// node had, each of those that are left fetches by one more reading, up to the last of
// what it lacks, for all who wait (unpackAll); where it is known at which places that can be begun, it
// unpacks no more than from those before what it lacks, the neighbours of what was asked for first, and
// some stretches at a time.
//
// # What stays in a compressed tar
//
// A frame of zstd, a member of gzip or a block of xz can be unpacked without what is
// before it; a block of deflated data in the middle of a member of gzip, with what it uses of the 32 KiB
// before it. Where these begin is found while the tar is unpacked (unpack.Places), every
// 4 MiB of what comes out, and is kept with the dataset (Origin.Places). To find those in the middle of members
// costs a part of the time that unpacking takes: while all that is still to come seems to fit (outlook), they are
// 16 MiB apart, for those who fetch again what a lost node had. What is used of the
// bytes before places takes 32 MiB a dataset at the most: if it would be more, those in members are
// farther apart, each archive of several having as much as its part of all their bytes. So some of a tar
// that has such places may stay in it: who reads
// a file that did unpacks it from the place before it on, which is 64 MiB more than the
// file at the most. A tar in which it would be more, or that has no place but its
// beginning, is refused; but not one that unpacks to 4 MiB at the most, nor one of several that unpacks
// to 16 MiB. Whoever begins in the middle of a member cannot compare its checksum: each
// file's is compared. When a second
// file is wanted of what lies between two places, all of that is unpacked once, and kept in
// memory for its neighbours (cuts).
//
// What there is room for is known for sure at the end. Until then what comes is stored, and
// when a node has no room for more, a bar is lowered for it (spiller): files whose hash is
// at the bar or above it are taken back, those with the largest hash first, and those that
// come later are not stored, but recorded. So what is here and what is not mix evenly,
// whatever the order. A bar does not rise. Where it is known how large all is, it
// begins where it will be about. It is written down before anything is taken back (Ebb), so
// that a reader whose daemon starts again goes on with it, when what was stored after the
// mark is removed; before one begins anew on another
// node, what the lost one had stored is removed. When all is read the records of what was
// taken back are changed (Settle).
//
// Of several archives, each node that reads some has a portion of every node's room, by
// what they unpack to if that is told, else by their sizes; it reads them one after the other, and its
// bars are for all of them. Who begins anew on another node does so with the first: what was stored is removed then,
// too. Where can be begun is written down with the marks. So it is with one of which only some members are wanted, or whose bad ones are
// to be left out. If one of them is known to have no place to begin at, or is a zip archive, nothing
// stays in any; where that is known when it was read, it is refused if something would have to stay in
// an archive of the same node.
//
// When a node is lost meanwhile, who still reads may know nothing of it, and fills the others. So what
// the lost one was to have stays in the source, too, if those have no room for it when all is read
// (Origins.Forsake).
//
// # What has no room later
//
// What a lost node had falls to the others, which may have no room for it: scratch has it, or they
// were full before. So may what a node has still to fetch, if scratch grows meanwhile. What there is room for is fetched; the
// rest is displaced: the node that is to have it reads it through instead, for all, since all ask
// that one (ReadDisplaced). It keeps none of it, also if there is room again: that is what somebody has
// made for a file of scratch. When a node is lost or comes back, and when the daemon starts again, it is tried again. So it is with
// spill=fail, too, which says what is to be at the beginning. What
// lies in a compressed tar without places cannot be read through: it is EIO, and each read tries to fetch it.
//
// # What was read once
//
// has the checksum of each file in its record, and of each chunk of a striped one
// (manifest.Record.Chunks), so that the node that has the chunk can compare it by itself,
// and name and fetch it again. There is none of the chunks of a file of more than
// manifest.MaxChunks of them, which is 128 GiB, nor of the one file that the end of a
// region of a plain tar cuts, whose parts several nodes read: it has one of the whole.
// It is filled like all else from then on: its records say where the bytes are, and
// a node takes over into its journal what the layouts gave it (adopt).
//
// # A zip archive
//
// The central directory says all, so that an archive of 64 MiB and more is
// scanned by reading that, and where its symbolic links point to. Who reads a run
// unpacks its members, and checks their local headers, sizes and CRC-32. A
// member that would be striped cannot be unpacked in pieces: an archive that has
// one, and a small one, is read once. For that MakePlan
// cuts the archive into one range for
// each node between members, of about as many bytes. A node reads its range from
// front to end, unpacks each member, checks its size and its CRC-32, and stores
// it at its owner. A large member is read by one node.
//
// # Many archives, and part of one
//
// What a pattern matches is one dataset. If it is not scanned, whole archives, of
// any kind, are dealt out to the nodes by size, and each is read by one node from
// front to end, some at a time. So is an archive of which only some members are
// wanted, or whose bad members are to be left out: only the one who reads it knows them. A mark
// of such a share says where each archive is that is being read (marker); of those before them nothing is read again. There is none with
// on-error=skip, nor with a list: what was left out, or seen of it, is known to the share alone. With
// unpack=no what matches is taken in as a directory of files.
//
// With unpack=nested the plain tars that are members of a plain tar are unpacked
// as well (unnest): they are hopped through where they lie, and their members are in a
// directory that is named after each. Such a source is always scanned. A tar that is itself
// stored with holes is refused.
//
// # What is left out
//
// With OnErrorSkip something that cannot be read or staged is left out of the
// dataset, counted, and named in a line of JSON (Skip): an unreadable file or
// directory, a member that is refused or whose data is damaged, an archive as a
// whole or what follows the place at which it is damaged. What was stored of it is
// taken back. Trouble of the job's own (no room, a node that is lost) still fails
// the dataset. What makes no tree is found when the manifest is made (Plan.LeftOut): of
// several members of one name the last stays, as it does for tar x, but a hard link (tar
// writes one of a file to itself) before no other and nothing before a directory; a file that has
// paths below it goes, and these stay; so does a hard link to what is not there.
//
// # What is kept
//
// Staged files belong to the user of the job, with the permissions that they
// have in the source but for set-user-ID and set-group-ID, which change meaning
// with the owner, as chown(2) has it. Times of modification are kept, to the nanosecond, from
// the year 1677 to 2262, which is what 64 bits hold; others become the nearest of these. Access and
// change times are set to them. Every file has the xxh3-128 of its bytes in its
// record, except a large one that is cut by a region's end (at most one for each
// region): two nodes see its bytes, and xxh3 cannot be put together from parts.
// CRC-32C can (Piece, JoinPieces); it is marked in the Sum (Checker). The sums of what
// is fetched after the manifest was published are in the journal of the node that
// has it.
//
// # What is refused
//
// See source. One share's error is everyone's, but for the loss of its node: whoever
// runs the shares cancels the others, and removes what they stored.
package stagein
