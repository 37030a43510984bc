package engine

import (
	"bytes"
	"strconv"
)

// The grammar is that of the Prometheus text format 0.0.4 (which vLLM sends as
// "version=1.0.0"): name, labels in braces, value, time stamp. Spaces and tabs
// may stand between any two of them.

func skipBlanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

// scanLabels calls f for each label up to the closing brace and returns what
// follows it. Values are unescaped; label and value may alias b.
func scanLabels(b []byte, f func(label, value []byte)) (rest []byte, ok bool) {
	for {
		b = skipBlanks(b)
		if len(b) > 0 && b[0] == '}' {
			return b[1:], true
		}
		n := 0
		for n < len(b) && isLabelByte(b[n], n) {
			n++
		}
		label := b[:n]
		b = skipBlanks(b[n:])
		if n == 0 || len(b) == 0 || b[0] != '=' {
			return nil, false
		}
		b = skipBlanks(b[1:])
		if len(b) == 0 || b[0] != '"' {
			return nil, false
		}
		var value []byte
		if value, b, ok = scanQuoted(b[1:]); !ok {
			return nil, false
		}
		f(label, value)
		b = skipBlanks(b)
		if len(b) == 0 || b[0] != ',' && b[0] != '}' {
			return nil, false
		}
		if b[0] == ',' {
			b = b[1:]
		}
	}
}

func isLabelByte(c byte, at int) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || at > 0 && c >= '0' && c <= '9'
}

// scanQuoted reads to the closing quote. Only \\, \" and \n are escapes.
func scanQuoted(b []byte) (value, rest []byte, ok bool) {
	end := bytes.IndexByte(b, '"')
	if end < 0 {
		return nil, nil, false
	}
	if bytes.IndexByte(b[:end], '\\') < 0 {
		return b[:end], b[end+1:], true
	}
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return value, b[i+1:], true
		case '\\':
			i++
			if i == len(b) {
				return nil, nil, false
			}
			switch b[i] {
			case '\\', '"':
				value = append(value, b[i])
			case 'n':
				value = append(value, '\n')
			default:
				return nil, nil, false
			}
		default:
			value = append(value, b[i])
		}
	}
	return nil, nil, false
}

// scanValue reads a value and, unused, a time stamp.
func scanValue(b []byte) (float64, bool) {
	fields := bytes.Fields(b)
	if len(fields) != 1 && len(fields) != 2 {
		return 0, false
	}
	if len(fields) == 2 {
		if _, err := strconv.ParseInt(string(fields[1]), 10, 64); err != nil {
			return 0, false
		}
	}
	// Go reads hexadecimal numbers and underscores, the format does not have them.
	if bytes.ContainsAny(fields[0], "_pPxX") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil && v == 0 {
		return 0, false // a number out of range is infinite, the others are none
	}
	return v, true
}
