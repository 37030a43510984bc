package llmapi

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Strings are hashed in their canonical form, which is almost always the form
// they arrive in, so that nothing is copied: only what must be escaped is, as \"
// \\ \b \f \n \r \t, or as \u00 and two digits. That is what JavaScript's
// JSON.stringify and most other encoders write.

// string consumes a string and returns its content in canonical form. The bytes
// are valid until the next call.
func (s *scanner) string() []byte {
	raw, canonical := s.rawString()
	if canonical || s.err != nil {
		return raw
	}
	s.buf = s.buf[:0]
	from := 0 // of what is not yet copied
	for at := 0; ; {
		n := bytes.IndexByte(raw[at:], '\\')
		if n < 0 {
			break
		}
		if at += n; shortEscape[raw[at+1]] {
			at += 2
			continue
		}
		s.buf = append(s.buf, raw[from:at]...)
		r, n := unescape(raw[at:])
		s.buf = appendCanonical(s.buf, r)
		at += n
		from = at
	}
	s.buf = append(s.buf, raw[from:]...)
	return s.buf
}

// decoded consumes a string and returns what it means, lone surrogates replaced
// as encoding/json does.
func (s *scanner) decoded() string {
	raw, _ := s.rawString()
	if s.err != nil || bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	var out strings.Builder
	out.Grow(len(raw)) // no escape is shorter than what it means
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			out.Write(raw)
			return out.String()
		}
		out.Write(raw[:n])
		r, width := unescape(raw[n:])
		out.WriteRune(r)
		raw = raw[n+width:]
	}
}

// rawString consumes a string, checks it, and returns what stands between its
// quotes, and whether that is its canonical form.
func (s *scanner) rawString() (raw []byte, canonical bool) {
	start := s.i + 1
	end, canonical := s.closingQuote(start)
	if end < 0 {
		return nil, false
	}
	s.i = end + 1
	return s.b[start:end], canonical
}

// closingQuote returns where the string that begins at start ends, and whether it
// is in its canonical form. It checks the string on the way, and returns -1 after
// a violation.
//
// Code has an escape at every dozen bytes or so, too close for IndexByte, and too
// irregular for a branch at each. Therefore 64 bytes are looked at together, and
// usual escapes are told from the end of a string by arithmetic.
func (s *scanner) closingQuote(start int) (end int, canonical bool) {
	at := start
	// Most strings are words, and shorter than a block.
	for ; at < start+16 && len(s.b)-at >= 8; at += 8 {
		word := binary.LittleEndian.Uint64(s.b[at:])
		if word&highs != 0 {
			break
		}
		if special := specialBytes(word); special != 0 {
			if end := at + bits.TrailingZeros64(special); s.b[end] == '"' {
				return end, true
			}
			break
		}
	}
	canonical = true
	for carry := uint64(0); ; {
		block := s.block(at)
		c := classify(block)
		next := at + len(block)
		if c.beyond != 0 && s.strict {
			if next = s.checkBeyond(c.beyond, c.stop|c.slash, at); next < 0 {
				return -1, false
			}
		}
		if carry != 0 && shortEscape[block[0]] {
			c.short |= 1
		}
		var escaped uint64
		escaped, carry = escapes(c.slash, carry)
		// What ends the string, is no part of one, or is an escape of its own kind.
		for odd := c.stop&^escaped | escaped&^c.short; odd != 0; odd &= odd - 1 {
			n := bits.TrailingZeros64(odd)
			switch {
			case escaped>>n&1 != 0:
				if canonical = false; !s.checkLongEscape(at + n) {
					return -1, false
				}
			case block[n] == '"':
				return at + n, canonical
			default:
				s.failControl(at + n)
				return -1, false
			}
		}
		at = next
	}
}

// escapes has a bit for each byte of a block that a backslash before it escapes;
// slash has the backslashes, and carry is 1 when the last one before the block
// escapes its first byte. So it is returned for the next block.
//
// Of a run of backslashes each second one is escaped, counted from its first. Added
// to the run, the bit of its beginning moves to the byte behind its end; done for the
// runs that begin at odd places alone, that tells the places at which even and odd
// change their meaning.
func escapes(slash, carry uint64) (escaped, out uint64) {
	if slash == 0 {
		return carry, 0
	}
	const even = 0x5555555555555555
	slash &^= carry
	behind := slash<<1 | carry
	odd := slash &^ even &^ behind
	sum, out := bits.Add64(odd, slash, 0)
	return (even ^ sum<<1) & behind, out
}

// checkBeyond checks that the characters beyond ASCII in the block at an offset
// are valid UTF-8; beyond and special have its bytes beyond ASCII, and those that
// are no plain text. It returns where the next block begins, or -1.
func (s *scanner) checkBeyond(beyond, special uint64, at int) (next int) {
	next = at + blockSize
	for beyond != 0 {
		n := bits.TrailingZeros64(beyond)
		behind := n + bits.TrailingZeros64(^(beyond >> n))
		beyond = beyond >> behind << behind
		start, end := at+n, at+behind
		if end == next {
			if special != 0 {
				return start // the string may have ended before; nothing is checked twice
			}
			end += prefixBeyondASCII(s.b[end:])
			next = end
		}
		if run := s.b[start:end]; !utf8.Valid(run) {
			s.fail(start+invalidUTF8(run), "invalid UTF-8")
			return -1
		}
	}
	return next
}

// prefixBeyondASCII is how many bytes at the beginning of b are beyond ASCII.
func prefixBeyondASCII(b []byte) int {
	n := 0
	for len(b)-n >= 8 && binary.LittleEndian.Uint64(b[n:])&highs == highs {
		n += 8
	}
	for n < len(b) && b[n] >= utf8.RuneSelf {
		n++
	}
	return n
}

// at returns a byte of the text, or 0 behind its end.
func (s *scanner) at(i int) byte {
	if i < len(s.b) {
		return s.b[i]
	}
	return 0
}

// block returns the 64 bytes from i on. Behind the end of the text stand zeros.
func (s *scanner) block(i int) *[blockSize]byte {
	if len(s.b)-i >= blockSize {
		return (*[blockSize]byte)(s.b[i:])
	}
	n := copy(s.tail[:], s.b[min(i, len(s.b)):])
	clear(s.tail[n:])
	return &s.tail
}

// checkLongEscape checks what follows a backslash if it is no short escape.
func (s *scanner) checkLongEscape(i int) bool {
	s.i = i
	switch s.at(i) {
	case '/':
		return true
	case 'u':
		for range 4 {
			if s.i++; hexDigit(s.at(s.i)) < 0 {
				s.unexpected("a hexadecimal digit")
				return false
			}
		}
		return true
	}
	s.unexpected("an escape character")
	return false
}

// failControl reports a raw control character in a string, or the end of the
// text, where a block has zeros.
func (s *scanner) failControl(i int) {
	if i >= len(s.b) {
		s.i = len(s.b)
		s.unexpected("the end of a string")
		return
	}
	s.fail(i, "invalid JSON: raw control character 0x%02x in a string; write it as an escape", s.b[i])
}

// shortEscape has the characters that form an escape of the canonical form with
// a backslash.
var shortEscape = [256]bool{'"': true, '\\': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// unescape decodes the checked escape sequence that b begins with, or the two of
// a surrogate pair, and returns its length.
func unescape(b []byte) (r rune, n int) {
	switch c := b[1]; c {
	case 'n':
		return '\n', 2
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'u':
	default:
		return rune(c), 2
	}
	r = hex4(b[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if bytes.HasPrefix(b[6:], []byte(`\u`)) {
		if pair := utf16.DecodeRune(r, hex4(b[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		r = r<<4 | hexDigit(c)
	}
	return r
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) rune {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10
	}
	return -1
}

func appendCanonical(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if r < ' ' {
		const digits = "0123456789abcdef"
		return append(dst, '\\', 'u', '0', '0', digits[r>>4], digits[r&0xf])
	}
	return utf8.AppendRune(dst, r)
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
