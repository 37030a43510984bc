package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// kind is what an event tells.
type kind int

const (
	other   kind = iota // of no interest here
	stored              // blocks can be found from now on
	removed             // blocks are gone
	cleared             // all are
)

var kinds = map[string]kind{"BlockStored": stored, "BlockRemoved": removed, "AllBlocksCleared": cleared}

// event is one event of a batch.
type event struct {
	kind   kind
	hashes []uint64
	tokens int // of each block, of a stored one
	// elsewhere: not in the memory that the engine computes from, but behind it, as
	// with KV offloading.
	elsewhere bool
}

// maxBlockTokens is far above what a block can have.
const maxBlockTokens = 1 << 20

// fields are the names by which newer engines send what older ones send by
// position: field i of an event is fields[kind][i-1].
var fields = map[kind][]string{
	stored:  {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"},
	removed: {"block_hashes", "medium"},
}

// decode reads a batch in any of vLLM's encodings: the batch and each event may be
// an array by position (up to 0.23 both are) or a map by name (events are from 0.24
// on). What it does not know it passes over; a batch without a list of events, or
// an event without what it needs, is an error.
func decode(payload []byte) ([]event, error) {
	d := reader{msgpack.NewDecoder(bytes.NewReader(payload))}
	var events []event
	found := false
	err := d.record(func(at int, name string) error {
		if at != 1 && name != "events" {
			return d.skip()
		}
		found = true
		var err error
		events, err = d.events()
		return err
	})
	if err == nil && !found {
		err = errors.New("it has no events")
	}
	if err != nil {
		return nil, fmt.Errorf("read a batch of KV events: %w", noEOF(err))
	}
	return events, nil
}

// noEOF names the end of a batch for what it is within one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// reader reads MessagePack value by value: which Go type fits is known only when
// the value comes.
type reader struct{ *msgpack.Decoder }

// record calls field for each value of an array, with its position, or of a map,
// with its name and position -1. field must read the value.
func (d reader) record(field func(at int, name string) error) error {
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	if isMap(code) {
		n, err := d.DecodeMapLen()
		for ; err == nil && n > 0; n-- {
			var name string
			if name, err = d.text(); err == nil {
				err = field(-1, name)
			}
		}
		return err
	}
	if !isArray(code) {
		return fmt.Errorf("expected an array or a map, found code %#x", code)
	}
	n, err := d.DecodeArrayLen()
	for at := 0; err == nil && at < n; at++ {
		err = field(at, "")
	}
	return err
}

func (d reader) events() ([]event, error) {
	n, err := d.list()
	var all []event
	for ; err == nil && n > 0; n-- {
		var e event
		if e, err = d.event(); err == nil && e.kind != other {
			all = append(all, e)
		}
	}
	return all, err
}

func (d reader) event() (e event, err error) {
	err = d.record(func(at int, name string) (err error) {
		if at > 0 && at <= len(fields[e.kind]) {
			name = fields[e.kind][at-1]
		}
		switch {
		case at == 0 || name == "type":
			name, err = d.text()
			e.kind = kinds[name]
		case name == "block_hashes":
			e.hashes, err = d.hashes()
		case name == "block_size":
			e.tokens, err = d.blockSize()
		case name == "medium":
			var medium string
			medium, err = d.text()
			e.elsewhere = medium != "" && !strings.EqualFold(medium, "GPU")
		default:
			err = d.skip()
		}
		return err
	})
	if err == nil && e.kind == stored && e.tokens == 0 && len(e.hashes) > 0 {
		err = errors.New("a stored block has no block_size")
	}
	return e, err
}

// list is the length of an array; nil is an empty one.
func (d reader) list() (int, error) {
	n, err := d.DecodeArrayLen()
	return max(n, 0), err
}

// hashes reads the names of blocks: numbers, or with
// VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0 digests, of which those numbers are the low
// 64 bits.
func (d reader) hashes() ([]uint64, error) {
	n, err := d.list()
	var all []uint64
	for ; err == nil && n > 0; n-- {
		var h uint64
		if h, err = d.hash(); err == nil {
			all = append(all, h)
		}
	}
	return all, err
}

func (d reader) hash() (uint64, error) {
	code, err := d.PeekCode()
	if err != nil {
		return 0, err
	}
	if !msgpcode.IsBin(code) && !msgpcode.IsString(code) {
		return d.DecodeUint64()
	}
	digest, err := d.DecodeBytes()
	if err != nil {
		return 0, err
	}
	var low [8]byte
	copy(low[max(8-len(digest), 0):], digest[max(len(digest)-8, 0):])
	return binary.BigEndian.Uint64(low[:]), nil
}

func (d reader) blockSize() (int, error) {
	n, err := d.DecodeInt64()
	if err == nil && (n < 1 || n > maxBlockTokens) {
		err = fmt.Errorf("block_size %d is not from 1 to %d", n, maxBlockTokens)
	}
	return int(n), err
}

// text reads a string; what is none counts as an empty one.
func (d reader) text() (string, error) {
	code, err := d.PeekCode()
	if err != nil {
		return "", err
	}
	if !msgpcode.IsString(code) {
		return "", d.skip()
	}
	return d.DecodeString()
}

// skip passes over a value. The decoder's own Skip calls itself for every level,
// so that a batch of brackets could end the process.
func (d reader) skip() error {
	for open := 1; open > 0; open-- {
		code, err := d.PeekCode()
		if err != nil {
			return err
		}
		n := 0
		switch {
		case isArray(code):
			n, err = d.DecodeArrayLen()
		case isMap(code):
			n, err = d.DecodeMapLen()
			n *= 2
		default:
			err = d.Skip()
		}
		if err != nil {
			return err
		}
		if n > math.MaxInt-open {
			return errors.New("too many values")
		}
		open += n
	}
	return nil
}

func isArray(code byte) bool {
	return msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32
}

func isMap(code byte) bool {
	return msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32
}
