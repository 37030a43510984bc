package session

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unique"

	"github.com/cespare/xxhash/v2"
)

// The saved form is a line that names format and version, then one record per
// conversation: the payload's length (uvarint), the payload, its xxhash64. A
// later record of a key replaces an earlier one, so that changes can simply be
// appended. Integers are little-endian or varints.
const (
	formatName    = "lmwarden conversations "
	formatVersion = 1
	maxRecord     = 1 << 20 // bytes; far above what a row can take
)

// Beside gives what the caller keeps of a conversation beside its identity (its
// home), to be saved in the same record; nil for nothing. It is called without
// any lock of the table.
type Beside func(model string, k Key) []byte

// Save writes all conversations. beside may be nil.
func (t *Table) Save(w io.Writer, beside Beside) error {
	if _, err := io.WriteString(w, formatName+strconv.Itoa(formatVersion)+"\n"); err != nil {
		return fmt.Errorf("save conversations: %w", err)
	}
	var b batch
	for i := t.Len(); i > 0; {
		t.mu.Lock()
		i = min(i, len(t.list))
		for ; i > 0 && !b.full(); i-- {
			r := t.list[i-1]
			b.add(r)
			t.saved(r)
		}
		t.mu.Unlock()
		if err := b.flush(w, beside); err != nil {
			return err
		}
	}
	return nil
}

// SaveChanges writes the conversations that changed since they were last saved,
// to be appended to what Save wrote, and returns their number. After an error
// only a new Save is complete.
func (t *Table) SaveChanges(w io.Writer, beside Beside) (n int, err error) {
	t.mu.Lock()
	rows := t.dirty
	t.dirty = nil
	for _, r := range rows {
		r.dirty = 0
	}
	t.mu.Unlock()
	var b batch
	for len(rows) > 0 {
		t.mu.Lock()
		for ; len(rows) > 0 && !b.full(); rows = rows[1:] {
			b.add(rows[0])
			n++
		}
		t.mu.Unlock()
		if err := b.flush(w, beside); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Changed notes that what the caller keeps beside a conversation has changed.
func (t *Table) Changed(k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[k]; r != nil {
		t.changed(r)
	}
}

// Loaded tells what Load found.
type Loaded struct {
	Conversations int // now in the table
	Expired       int // past their idle time, left out
	// Cut is set when the last record was cut short, as a crash leaves it; all
	// before it was read.
	Cut bool
}

// Load fills an empty table from what Save and SaveChanges wrote. beside is
// called for each conversation loaded with what was saved beside it, and may be
// nil. On an error (a newer version, a damaged file) the table is as before.
func (t *Table) Load(now time.Time, r io.Reader, beside func(model string, k Key, data []byte)) (Loaded, error) {
	records, cut, err := readAll(r)
	if err != nil {
		return Loaded{}, err
	}
	loaded := Loaded{Cut: cut}
	rows := make([]*record, 0, len(records))
	for _, rec := range records {
		rows = append(rows, rec)
	}
	// The idle ring runs from the oldest to the newest.
	slices.SortFunc(rows, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.row.last, b.row.last), bytes.Compare(a.row.key[:], b.row.key[:]))
	})
	var kept []*record
	for _, rec := range rows {
		if now.UnixMilli()-rec.row.last > t.idleFor.Milliseconds() {
			loaded.Expired++
			continue
		}
		kept = append(kept, rec)
	}
	kept = kept[max(0, len(kept)-t.max):]
	for _, rec := range kept {
		if t.restore(&rec.row) {
			loaded.Conversations++
			if beside != nil && len(rec.beside) > 0 {
				beside(rec.row.origin.Value().model, rec.row.key, rec.beside)
			}
		}
	}
	return loaded, nil
}

// restore puts a saved row into the table unless its key is there already.
func (t *Table) restore(saved *row) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[saved.key] != nil {
		return false
	}
	r := t.add(saved.key, saved.scope, saved.first)
	r.parent, r.origin = saved.parent, saved.origin
	r.last, r.turns, r.tools = saved.last, saved.turns, saved.tools
	r.prompt, r.cached, r.reply = saved.prompt, saved.cached, saved.reply
	for _, l := range saved.links[:saved.known] {
		t.chain(r, l.sum)
		if t.nodes[l.sum] == r {
			r.link(l.sum).after = l.after
		}
	}
	return true
}

// batch is rows on their way to a writer: encoded under the lock, written
// without it.
type batch struct {
	buf  []byte
	ends []int
	ids  []batchID
}

type batchID struct {
	model string
	key   Key
}

func (b *batch) full() bool { return len(b.ids) == 512 }

func (b *batch) add(r *row) {
	b.buf = appendRow(b.buf, r)
	b.ends = append(b.ends, len(b.buf))
	b.ids = append(b.ids, batchID{r.origin.Value().model, r.key})
}

func (b *batch) flush(w io.Writer, beside Beside) error {
	var out, payload []byte
	start := 0
	for i, id := range b.ids {
		payload = append(payload[:0], b.buf[start:b.ends[i]]...)
		start = b.ends[i]
		var more []byte
		if beside != nil {
			more = beside(id.model, id.key)
		}
		if payload = appendBytes(payload, more); len(payload) > maxRecord {
			return fmt.Errorf("save conversations: %s takes %d bytes, a record at most %d", id.key.Name(), len(payload), maxRecord)
		}
		out = binary.AppendUvarint(out, uint64(len(payload)))
		out = append(out, payload...)
		out = binary.LittleEndian.AppendUint64(out, xxhash.Sum64(payload))
	}
	b.buf, b.ends, b.ids = b.buf[:0], b.ends[:0], b.ids[:0]
	if _, err := w.Write(out); err != nil {
		return fmt.Errorf("save conversations: %w", err)
	}
	return nil
}

const (
	flagTools  = 1
	flagTenant = 2 // the tenant follows the flags
)

func appendRow(b []byte, r *row) []byte {
	b = append(b, r.key[:]...)
	b = append(b, r.parent[:]...)
	o := r.origin.Value()
	for _, s := range []string{o.model, o.source, o.client} {
		b = appendBytes(b, []byte(s))
	}
	var flags uint64
	if r.tools {
		flags |= flagTools
	}
	if o.tenant != "" {
		flags |= flagTenant
	}
	b = binary.AppendUvarint(b, flags)
	if o.tenant != "" {
		b = appendBytes(b, []byte(o.tenant))
	}
	for _, v := range []int64{r.first, r.last, r.turns, r.prompt, r.cached, r.reply} {
		b = binary.AppendVarint(b, v)
	}
	b = binary.LittleEndian.AppendUint64(b, r.scope)
	b = binary.AppendUvarint(b, uint64(r.known))
	for _, l := range r.links[:r.known] {
		b = binary.LittleEndian.AppendUint64(b, l.sum)
		b = binary.LittleEndian.AppendUint64(b, l.after)
	}
	return b
}

func appendBytes(b, v []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

// record is a row as it was saved, outside any table.
type record struct {
	row    row
	beside []byte
}

// readAll reads every record, the last one of each key. cut is set when the end
// is missing.
func readAll(r io.Reader) (records map[Key]*record, cut bool, err error) {
	in := bufio.NewReader(r)
	header, err := in.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, fmt.Errorf("load conversations: %w", err)
	}
	version, ok := strings.CutPrefix(strings.TrimSuffix(header, "\n"), formatName)
	n, bad := strconv.Atoi(version)
	switch {
	case header == "":
		return nil, true, nil
	case !ok || bad != nil || err != nil:
		return nil, false, errors.New("load conversations: not a conversation table of the warden; move the file away to start with an empty one")
	case n != formatVersion:
		return nil, false, fmt.Errorf("load conversations: the file has version %d, this warden reads version %d; move the file away to start with an empty table", n, formatVersion)
	}

	records = map[Key]*record{}
	offset := int64(len(header))
	damaged := func(what string) error {
		return fmt.Errorf("load conversations: damaged at byte %d (%s); move the file away to start with an empty table", offset, what)
	}
	var frame []byte
	for {
		size, err := binary.ReadUvarint(in)
		switch {
		case errors.Is(err, io.EOF):
			return records, false, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return records, true, nil
		case err != nil:
			return nil, false, damaged(err.Error())
		case size == 0:
			// A file system may fill the tail of a crashed file with zeros.
			return records, true, nil
		case size > maxRecord:
			return nil, false, damaged("impossible length")
		}
		frame = slices.Grow(frame[:0], int(size)+8)[:size+8]
		if _, err := io.ReadFull(in, frame); errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return records, true, nil
		} else if err != nil {
			return nil, false, fmt.Errorf("load conversations: %w", err)
		}
		payload := frame[:size]
		if binary.LittleEndian.Uint64(frame[size:]) != xxhash.Sum64(payload) {
			return nil, false, damaged("wrong checksum")
		}
		rec, ok := parseRecord(payload)
		if !ok {
			return nil, false, damaged("not a record")
		}
		records[rec.row.key] = rec
		offset += int64(len(binary.AppendUvarint(nil, size))) + int64(size) + 8
	}
}

// parseRecord reads one payload. It keeps no part of b.
func parseRecord(b []byte) (*record, bool) {
	p := parser{rest: b}
	rec := &record{}
	r := &rec.row
	copy(r.key[:], p.take(len(r.key)))
	copy(r.parent[:], p.take(len(r.parent)))
	o := origin{model: string(p.bytes()), source: string(p.bytes()), client: string(p.bytes())}
	flags := p.uvarint()
	if flags&flagTenant != 0 {
		o.tenant = string(p.bytes())
	}
	r.origin, r.tools = unique.Make(o), flags&flagTools != 0
	for _, v := range []*int64{&r.first, &r.last, &r.turns, &r.prompt, &r.cached, &r.reply} {
		*v = p.varint()
	}
	r.scope = p.uint64()
	links := p.uvarint()
	if links > maxLinks {
		return nil, false
	}
	r.known = uint8(links)
	for i := range links {
		r.links[i] = link{p.uint64(), p.uint64()}
	}
	rec.beside = bytes.Clone(p.bytes())
	return rec, !p.bad && len(p.rest) == 0 && r.key != Key{}
}

// parser takes values off a payload. After the first one that is not there it is
// bad and gives zeros.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) take(n int) []byte {
	if p.bad || n > len(p.rest) {
		p.bad = true
		return make([]byte, min(n, 16))
	}
	v := p.rest[:n]
	p.rest = p.rest[n:]
	return v
}

func (p *parser) skip(n int) {
	if n <= 0 {
		p.bad = true
		n = 0
	}
	p.take(n)
}

func (p *parser) uvarint() uint64 {
	v, n := binary.Uvarint(p.rest)
	p.skip(n)
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.rest)
	p.skip(n)
	return v
}

func (p *parser) uint64() uint64 { return binary.LittleEndian.Uint64(p.take(8)) }

func (p *parser) bytes() []byte {
	n := p.uvarint()
	if n > uint64(len(p.rest)) {
		p.bad = true
		return nil
	}
	return p.take(int(n))
}
