package llmapi

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of arrays and objects. Real bodies stay below 30;
// Python's decoder, which reads them next, gives up at about 1,000.
const maxDepth = 512

// scanner walks one JSON text and checks its whole syntax on the way. It accepts
// what encoding/json accepts, less invalid UTF-8 and nesting beyond maxDepth.
//
// Every value must be consumed exactly once, by one of members, elements,
// string, value and skip. The first violation sticks in err; from then on all
// methods return at once, so that callers check err once, at the end.
type scanner struct {
	b     []byte
	i     int // next byte to read
	depth int
	keyAt int // where the key that members yields began
	err   *BadRequest

	decoded []byte // holds the last string that had escapes
}

func (s *scanner) fail(at int, format string, args ...any) {
	if s.err == nil {
		s.err = &BadRequest{Offset: at, Message: fmt.Sprintf(format, args...)}
	}
}

// unexpected reports that the text does not go on at s.i as it must.
func (s *scanner) unexpected(want string) {
	if s.i >= len(s.b) {
		s.fail(s.i, "invalid JSON: it ends where %s should be", want)
		return
	}
	c, n := utf8.DecodeRune(s.b[s.i:])
	if c == utf8.RuneError && n <= 1 {
		s.fail(s.i, "invalid JSON: byte 0x%02x where %s should be", s.b[s.i], want)
		return
	}
	s.fail(s.i, "invalid JSON: %q where %s should be", c, want)
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, or 0 at the end and after an
// error; 0 starts no JSON value.
func (s *scanner) peek() byte {
	if s.err != nil {
		return 0
	}
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) enter() bool {
	s.i++
	s.depth++
	if s.depth > maxDepth {
		s.fail(s.i-1, "nested deeper than %d levels", maxDepth)
		return false
	}
	return true
}

// next is called behind a value inside an object or array: it consumes the comma
// and reports true, or consumes the closing byte and reports false.
func (s *scanner) next(closing byte) bool {
	switch c := s.peek(); {
	case s.err != nil:
		return false
	case c == ',':
		s.i++
		return true
	case c == closing:
		s.i++
		s.depth--
		return false
	}
	s.unexpected("a comma or the closing " + string(closing))
	return false
}

// members iterates over an object. The body of the loop must consume the value
// and must not break. The decoded key is valid until the value is read.
func (s *scanner) members(yield func(key []byte) bool) {
	if s.peek() != '{' {
		s.unexpected("an object")
		return
	}
	if !s.enter() {
		return
	}
	if s.peek() == '}' {
		s.i++
		s.depth--
		return
	}
	for {
		if s.peek() != '"' {
			s.unexpected("a key in quotes")
			return
		}
		s.keyAt = s.i
		key := s.string()
		if s.peek() != ':' {
			s.unexpected("a colon")
			return
		}
		s.i++
		if s.peek(); !yield(key) || !s.next('}') {
			return
		}
	}
}

// elements iterates over an array. The body of the loop must consume the element
// and must not break.
func (s *scanner) elements(yield func() bool) {
	if s.peek() != '[' {
		s.unexpected("an array")
		return
	}
	if !s.enter() {
		return
	}
	if s.peek() == ']' {
		s.i++
		s.depth--
		return
	}
	for {
		if s.peek(); !yield() || !s.next(']') {
			return
		}
	}
}

// end checks that only white space follows.
func (s *scanner) end() {
	if s.peek() != 0 || s.i < len(s.b) {
		s.unexpected("the end")
	}
}

// skip consumes any value.
func (s *scanner) skip() {
	switch s.peek() {
	case '"':
		s.scanString(false)
	case '{':
		for range s.members {
			s.skip()
		}
	case '[':
		for range s.elements {
			s.skip()
		}
	default:
		s.scalar()
	}
}

// scalar consumes a number or literal and returns its bytes.
func (s *scanner) scalar() []byte {
	switch c := s.peek(); {
	case s.err != nil:
		return nil
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	}
	s.unexpected("a value")
	return nil
}

func (s *scanner) literal(word string) []byte {
	start := s.i
	for j := range len(word) {
		if s.i >= len(s.b) || s.b[s.i] != word[j] {
			s.unexpected("the rest of " + word)
			return nil
		}
		s.i++
	}
	return s.b[start:s.i]
}

func (s *scanner) number() []byte {
	start := s.i
	if s.b[s.i] == '-' {
		s.i++
	}
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		return nil
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return nil
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return nil
		}
	}
	return s.b[start:s.i]
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	if s.i == start {
		s.unexpected("a digit")
		return false
	}
	return true
}

// string consumes a string and returns it decoded, lone surrogates replaced as
// encoding/json does. The bytes are valid until the next call.
func (s *scanner) string() []byte { return s.scanString(true) }

// Constants for looking at eight bytes at a time.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// scanString consumes a string. Without decode it returns nothing of use.
//
// Eight bytes are tested at once for a quote, a backslash or a control
// character, with the classic zero-byte test: the lowest byte that it marks is
// always a true one. Bytes beyond ASCII are only noted; a string that has some
// is checked as a whole, by utf8.Valid.
func (s *scanner) scanString(decode bool) []byte {
	b, i := s.b, s.i+1
	start := i // of the string
	run := i   // of the bytes that are not yet in s.decoded
	escaped := false
	var beyond uint64
	for {
		for len(b)-i >= 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			q, e := w^(ones*'"'), w^(ones*'\\')
			m := ((q-ones)&^q | (e-ones)&^e | (w-ones*0x20)&^w) & highs
			if m != 0 {
				n := bits.TrailingZeros64(m) // 8*k+7 for byte k
				beyond |= w & (1<<n - 1)
				i += n / 8
				break
			}
			beyond |= w
			i += 8
		}
		for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= 0x20 {
			beyond |= uint64(b[i])
			i++
		}
		s.i = i
		if i >= len(b) {
			s.unexpected("the end of a string")
			return nil
		}
		switch b[i] {
		case '"':
			s.i++
			raw := b[start:i]
			if beyond&highs != 0 && !utf8.Valid(raw) {
				s.fail(start+invalidUTF8(raw), "invalid UTF-8 in a string")
				return nil
			}
			if !escaped {
				return raw
			}
			if decode {
				s.decoded = append(s.decoded, b[run:i]...)
			}
			return s.decoded
		case '\\':
			if decode {
				if !escaped {
					s.decoded = s.decoded[:0]
				}
				s.decoded = append(s.decoded, b[run:i]...)
			}
			escaped = true
			if !s.escape(decode) {
				return nil
			}
			i = s.i
			run = i
		default:
			s.fail(i, "invalid JSON: raw control character 0x%02x in a string; write it as an escape", b[i])
			return nil
		}
	}
}

// escape consumes one escape sequence at s.i, or two that form a surrogate pair,
// and appends what it stands for.
func (s *scanner) escape(decode bool) bool {
	if s.i++; s.i >= len(s.b) {
		s.unexpected("the rest of an escape")
		return false
	}
	c := s.b[s.i]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return s.unicodeEscape(decode)
	default:
		s.unexpected("an escape character")
		return false
	}
	s.i++
	if decode {
		s.decoded = append(s.decoded, c)
	}
	return true
}

func (s *scanner) unicodeEscape(decode bool) bool {
	s.i++
	r, ok := s.hex4(s.i)
	if !ok {
		for s.i < len(s.b) && isHex(s.b[s.i]) {
			s.i++
		}
		s.unexpected("a hexadecimal digit")
		return false
	}
	s.i += 4
	if !decode {
		return true
	}
	if utf16.IsSurrogate(r) {
		pair := rune(utf8.RuneError)
		if s.i+6 <= len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
			if low, ok := s.hex4(s.i + 2); ok {
				pair = utf16.DecodeRune(r, low)
			}
		}
		if pair != utf8.RuneError {
			s.i += 6
		}
		r = pair
	}
	s.decoded = utf8.AppendRune(s.decoded, r)
	return true
}

func (s *scanner) hex4(at int) (r rune, ok bool) {
	if at+4 > len(s.b) {
		return 0, false
	}
	for _, c := range s.b[at : at+4] {
		if !isHex(c) {
			return 0, false
		}
		if c > '9' {
			c = c&0x0f + 9
		}
		r = r<<4 | rune(c&0x0f)
	}
	return r, true
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// invalidUTF8 returns the offset of the first byte that is not valid UTF-8.
func invalidUTF8(b []byte) int {
	i := 0
	for i < len(b) {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		i += n
	}
	return i
}
