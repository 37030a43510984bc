#include "textflag.h"

// 32 of a byte each.
#define EACH(name, byte) \
	DATA name<>+0(SB)/8, $(byte * 0x0101010101010101)  \
	DATA name<>+8(SB)/8, $(byte * 0x0101010101010101)  \
	DATA name<>+16(SB)/8, $(byte * 0x0101010101010101) \
	DATA name<>+24(SB)/8, $(byte * 0x0101010101010101) \
	GLOBL name<>(SB), RODATA|NOPTR, $32

EACH(quote, 0x22)
EACH(slash, 0x5c)
EACH(control, 0x1f) // the highest
EACH(b, 0x62)
EACH(f, 0x66)
EACH(n, 0x6e)
EACH(r, 0x72)
EACH(t, 0x74)

// HALF classifies the 32 bytes in data into stop, slash, short and beyond.
#define HALF(data, stop, back, short, beyond) \
	VPCMPEQB quote<>(SB), data, Y1    \
	VPCMPEQB slash<>(SB), data, Y2    \
	VPMINUB control<>(SB), data, Y3   \
	VPCMPEQB data, Y3, Y3             \
	VPCMPEQB b<>(SB), data, Y4        \
	VPCMPEQB f<>(SB), data, Y5        \
	VPCMPEQB n<>(SB), data, Y6        \
	VPCMPEQB r<>(SB), data, Y7        \
	VPCMPEQB t<>(SB), data, Y8        \
	VPMOVMSKB data, beyond            \
	VPMOVMSKB Y2, back                \
	VPOR Y1, Y3, Y3                   \
	VPOR Y1, Y2, Y2                   \
	VPOR Y4, Y5, Y5                   \
	VPOR Y6, Y7, Y7                   \
	VPOR Y2, Y8, Y8                   \
	VPOR Y5, Y7, Y7                   \
	VPOR Y7, Y8, Y8                   \
	VPMOVMSKB Y3, stop                \
	VPMOVMSKB Y8, short

// JOIN puts the upper half before the lower one.
#define JOIN(lower, upper) \
	SHLQ $32, upper   \
	ORQ upper, lower

// func classifyAVX2(block *[blockSize]byte) (c classes)
TEXT ·classifyAVX2(SB), NOSPLIT, $0-40
	MOVQ block+0(FP), SI
	VMOVDQU (SI), Y0
	HALF(Y0, R8, R9, R10, R11)
	VMOVDQU 32(SI), Y0
	HALF(Y0, AX, BX, CX, DX)
	JOIN(R8, AX)
	JOIN(R9, BX)
	JOIN(R10, CX)
	JOIN(R11, DX)
	MOVQ R8, c_stop+8(FP)
	MOVQ R9, c_slash+16(FP)
	MOVQ R10, c_short+24(FP)
	MOVQ R11, c_beyond+32(FP)
	VZEROUPPER
	RET
