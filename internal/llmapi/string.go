package llmapi

import (
	"bytes"
	"encoding/binary"
	"math/bits"
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
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			n = len(raw)
		}
		s.buf = append(s.buf, raw[:n]...)
		if raw = raw[n:]; len(raw) == 0 {
			break
		}
		var r rune
		r, n = unescape(raw)
		s.buf = appendCanonical(s.buf, r)
		raw = raw[n:]
	}
	return s.buf
}

// decoded consumes a string and returns what it means, lone surrogates replaced
// as encoding/json does.
func (s *scanner) decoded() string {
	raw, _ := s.rawString()
	if s.err != nil || bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	var out []byte
	for len(raw) > 0 {
		if raw[0] != '\\' {
			out = append(out, raw[0])
			raw = raw[1:]
			continue
		}
		r, n := unescape(raw)
		out = utf8.AppendRune(out, r)
		raw = raw[n:]
	}
	return string(out)
}

// rawString consumes a string, checks it, and returns what stands between its
// quotes, and whether that is its canonical form.
func (s *scanner) rawString() (raw []byte, canonical bool) {
	start := s.i + 1
	end := closingQuote(s.b, start)
	if end < 0 {
		s.i = len(s.b)
		s.unexpected("the end of a string")
		return nil, false
	}
	s.i = end + 1
	if raw = s.b[start:end]; isShortPlain(raw) {
		return raw, true
	}
	return raw, s.checkString(start, end)
}

// closingQuote returns where the string that begins at start ends, or -1.
func closingQuote(b []byte, start int) int {
	for from := start; ; {
		n := bytes.IndexByte(b[from:], '"')
		if n < 0 {
			return -1
		}
		end := from + n
		if trailingSlashes(b[from:end])%2 == 0 {
			return end
		}
		from = end + 1
	}
}

// isShortPlain recognises most keys and other words, which need no closer look.
func isShortPlain(raw []byte) bool {
	if len(raw) > 16 {
		return false
	}
	for _, c := range raw {
		if c < ' ' || c >= utf8.RuneSelf || c == '\\' {
			return false
		}
	}
	return true
}

// Constants for looking at the eight bytes of a word at a time.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// checkString checks the string between start and end, and reports whether it is
// in its canonical form.
//
// Code has an escape at every dozen bytes or so, too close for IndexByte: most of
// the time would go into mispredicted branches. Therefore 64 bytes are looked at
// together, and their backslashes gathered in one word. Bit 8*j+k of it stands
// for byte j of word k, since in that order a shift is all that it takes.
func (s *scanner) checkString(start, end int) (canonical bool) {
	canonical = true
	var beyond uint64 // a high bit is set if a byte is beyond ASCII
	var carry uint64  // 1 if the block before ended with the backslash of an escape
	var last [64]byte
	for at := start; at < end; at += 64 {
		block := &last
		if end-at >= 64 {
			block = (*[64]byte)(s.b[at:])
		} else {
			for i := copy(last[:], s.b[at:end]); i < 64; i++ {
				last[i] = ' '
			}
		}
		high, control, slashes := marks(block)
		beyond |= high
		if control&highs != 0 {
			s.failControl(at, end)
			return false
		}
		escaped := escapedBytes(slashes, carry)
		carry = (slashes &^ escaped) >> 63
		for ; escaped != 0; escaped &= escaped - 1 {
			n := bits.TrailingZeros64(escaped)
			i := n%8*8 + n/8
			if isShortEscape(block[i]) {
				continue
			}
			if canonical = false; !s.checkLongEscape(at+i, end) {
				return false
			}
		}
	}
	if beyond&highs != 0 && !utf8.Valid(s.b[start:end]) {
		s.fail(start+invalidUTF8(s.b[start:end]), "invalid UTF-8 in a string")
		return false
	}
	return canonical
}

// marks looks at a block. In beyond and control a high bit is set if a byte is
// beyond ASCII, or a control character; slashes has a bit for each backslash. It
// is unrolled, which gains a tenth of the whole scan.
func marks(block *[64]byte) (beyond, control, slashes uint64) {
	w0 := binary.LittleEndian.Uint64(block[0:])
	w1 := binary.LittleEndian.Uint64(block[8:])
	w2 := binary.LittleEndian.Uint64(block[16:])
	w3 := binary.LittleEndian.Uint64(block[24:])
	w4 := binary.LittleEndian.Uint64(block[32:])
	w5 := binary.LittleEndian.Uint64(block[40:])
	w6 := binary.LittleEndian.Uint64(block[48:])
	w7 := binary.LittleEndian.Uint64(block[56:])
	beyond = w0 | w1 | w2 | w3 | w4 | w5 | w6 | w7
	control = belowSpace(w0) | belowSpace(w1) | belowSpace(w2) | belowSpace(w3) |
		belowSpace(w4) | belowSpace(w5) | belowSpace(w6) | belowSpace(w7)
	const slash = ones * '\\'
	plain := nonZero(w0^slash)>>7 | nonZero(w1^slash)>>6 | nonZero(w2^slash)>>5 | nonZero(w3^slash)>>4 |
		nonZero(w4^slash)>>3 | nonZero(w5^slash)>>2 | nonZero(w6^slash)>>1 | nonZero(w7^slash)
	return beyond, control, ^plain
}

// belowSpace has the high bit set of some byte of the word if one is a control
// character, though perhaps also of bytes above that one.
func belowSpace(w uint64) uint64 { return (w - ones*' ') &^ w }

// nonZero has the high bit set of each byte of the word that is not 0, and no
// other bit.
func nonZero(w uint64) uint64 { return (w&^highs + ^uint64(highs) | w) & highs }

// escapedBytes marks the bytes of a block that stand behind a backslash which is
// not escaped itself.
func escapedBytes(slashes, carry uint64) uint64 {
	begin := slashes &^ (following(slashes) | carry) // the first backslash of each row
	escaped := carry
	for now := carry; ; {
		// Behind an escaped backslash the next one of the row begins an escape.
		begin |= following(now&slashes) & slashes
		if begin == 0 {
			return escaped
		}
		now, begin = following(begin), 0
		escaped |= now
	}
}

// following moves each mark of a block to the byte behind, within the block.
func following(marks uint64) uint64 { return marks<<8 | marks>>55&0xfe }

// checkLongEscape checks what follows a backslash if it is no short escape.
func (s *scanner) checkLongEscape(i, end int) bool {
	switch s.b[i] {
	case '/':
		return true
	case 'u':
		for range 4 {
			if i++; i >= end || hexDigit(s.b[i]) < 0 {
				s.i = i
				s.unexpected("a hexadecimal digit")
				return false
			}
		}
		return true
	}
	s.i = i
	s.unexpected("an escape character")
	return false
}

func (s *scanner) failControl(from, end int) {
	for i := from; i < end; i++ {
		if c := s.b[i]; c < ' ' {
			s.fail(i, "invalid JSON: raw control character 0x%02x in a string; write it as an escape", c)
			return
		}
	}
}

// isShortEscape reports whether a backslash and c are an escape of the canonical
// form.
func isShortEscape(c byte) bool {
	const (
		quote   = 1 << ('"' - ' ')
		letters = 1<<('\\'-'@') | 1<<('b'-'@') | 1<<('f'-'@') | 1<<('n'-'@') | 1<<('r'-'@') | 1<<('t'-'@')
	)
	// A shift by 64 or more, which the differences of other bytes come to, is 0.
	return (uint64(letters)>>(c-'@')|uint64(quote)>>(c-' '))&1 != 0
}

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
