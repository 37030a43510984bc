package llmapi

import "golang.org/x/sys/cpu"

func classify(block *[blockSize]byte) classes {
	if cpu.X86.HasAVX2 {
		return classifyAVX2(block)
	}
	return classifyWords(block)
}

//go:noescape
func classifyAVX2(block *[blockSize]byte) (c classes)
