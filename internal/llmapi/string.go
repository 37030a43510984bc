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

// Constants for looking at the eight bytes of a word at a time.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// rawString consumes a string, checks it, and returns what stands between its
// quotes, and whether that is its canonical form.
func (s *scanner) rawString() (raw []byte, canonical bool) {
	start := s.i + 1
	from, beyond := s.plainBlocks(start)
	end := closingQuote(s.b, from)
	if end < 0 {
		s.i = len(s.b)
		s.unexpected("the end of a string")
		return nil, false
	}
	raw = s.b[start:end]
	s.i = end + 1

	rest := s.b[from:end]
	var control, slash uint64
	for len(rest) >= 8 {
		w := binary.LittleEndian.Uint64(rest)
		beyond |= w
		control |= hasControl(w)
		slash |= hasZero(w ^ ones*'\\')
		rest = rest[8:]
	}
	w := uint64(ones * ' ')
	for _, c := range rest {
		w = w<<8 | uint64(c)
	}
	beyond |= w
	control |= hasControl(w)
	slash |= hasZero(w ^ ones*'\\')

	if control&highs != 0 {
		s.failControl(from, end)
		return nil, false
	}
	if beyond&highs != 0 && !utf8.Valid(raw) {
		s.fail(start+invalidUTF8(raw), "invalid UTF-8 in a string")
		return nil, false
	}
	return raw, slash&highs == 0 || s.checkEscapes(from, end)
}

// hasZero has a high bit set if a byte of the word is 0, but not only there: a
// borrow can spill into bytes above.
func hasZero(w uint64) uint64 { return (w - ones) &^ w }

// hasControl is the same for control characters.
func hasControl(w uint64) uint64 { return (w - ones*' ') &^ w }

// plainBlocks skips blocks of 64 bytes from i on, inside a string, that hold
// nothing but plain bytes and the escapes of the canonical form. It stops at the
// block with the closing quote at the latest. In beyond a high bit is set if a
// byte was beyond ASCII.
//
// Code has an escape at every dozen bytes or so, too close for IndexByte: two
// thirds of the time would go into mispredicted branches. Gathering the marks of
// a block in one word avoids those.
func (s *scanner) plainBlocks(i int) (end int, beyond uint64) {
	var carry uint64 // 1 if the block before ended with the backslash of an escape
	for len(s.b)-i >= 64 {
		block := (*[64]byte)(s.b[i:])
		var slashes, quotes, seen, control uint64
		for k := 56; k >= 0; k -= 8 {
			w := binary.LittleEndian.Uint64(block[k:])
			seen |= w
			control |= hasControl(w)
			slashes = slashes<<8 | zeroBytes(w^ones*'\\')
			quotes = quotes<<8 | zeroBytes(w^ones*'"')
		}
		// The bytes that a backslash escapes. Most blocks have no two in a row.
		escaped := slashes<<1 | carry
		if slashes&escaped != 0 {
			escaped = 0
			for rest := slashes &^ carry; rest != 0; {
				n := bits.TrailingZeros64(rest)
				escaped |= 2 << n
				rest &^= 3 << n
			}
			escaped |= carry
		}
		if quotes&^escaped != 0 || control&highs != 0 {
			break
		}
		for rest := escaped &^ (slashes | quotes); rest != 0; rest &= rest - 1 {
			if !isShortEscape(block[bits.TrailingZeros64(rest)]) {
				return i - int(carry), beyond
			}
		}
		carry = (slashes &^ escaped) >> 63
		beyond |= seen
		i += 64
	}
	return i - int(carry), beyond
}

// zeroBytes has a bit for each byte of the word that is 0, the lowest bit for
// the lowest byte.
func zeroBytes(w uint64) uint64 {
	high := ^(w&^highs + ^uint64(highs) | w) & highs
	return high >> 7 * 0x0102040810204080 >> 56 // moves the eight high bits side by side
}

func (s *scanner) failControl(from, end int) {
	for i := from; i < end; i++ {
		if c := s.b[i]; c < ' ' {
			s.fail(i, "invalid JSON: raw control character 0x%02x in a string; write it as an escape", c)
			return
		}
	}
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

// checkEscapes checks the escapes between start and end and reports whether all
// of them are of the canonical form.
func (s *scanner) checkEscapes(start, end int) (canonical bool) {
	canonical = true
	for i := start; ; {
		n := bytes.IndexByte(s.b[i:end], '\\')
		if n < 0 {
			return canonical
		}
		i += n + 2 // an unescaped backslash is never the last byte
		c := s.b[i-1]
		if isShortEscape(c) {
			continue
		}
		canonical = false
		switch c {
		case '/':
		case 'u':
			for range 4 {
				if i >= end || hexDigit(s.b[i]) < 0 {
					s.i = i
					s.unexpected("a hexadecimal digit")
					return false
				}
				i++
			}
		default:
			s.i = i - 1
			s.unexpected("an escape character")
			return false
		}
	}
}

// isShortEscape reports whether c makes an escape of two bytes that the
// canonical form uses.
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
