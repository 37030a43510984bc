package llmapi

import (
	"fmt"
	"unicode/utf8"
)

// maxDepth bounds the nesting of arrays and objects. Real bodies stay below 30;
// Python's decoder, which reads them next, gives up at about 1,000.
const maxDepth = 512

// scanner walks one JSON text and checks its whole syntax on the way. It accepts
// what encoding/json accepts, less nesting beyond maxDepth; like that it asks only
// when it is strict whether strings are valid UTF-8.
//
// Every value must be consumed exactly once, by one of members, elements,
// string, value and skip. The first violation sticks in err; from then on all
// methods return at once, so that callers check err once, at the end.
type scanner struct {
	b      []byte
	strict bool
	i      int // next byte to read
	depth  int
	keyAt  int // where the key that members yields began
	err    *BadRequest

	buf  []byte          // holds the last string that was not in canonical form
	tail [blockSize]byte // holds the last block of the text
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
	if c == utf8.RuneError && n == 1 {
		s.fail(s.i, "invalid UTF-8")
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
// and must not break. The key, as string returns it, is valid until the value is read.
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
		s.rawString()
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
