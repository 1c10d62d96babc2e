# First instructions of every kind. Each function takes a number and returns another: u32 f(u64).
# keep_: can be hooked, and goes on being right. refuse_: must be refused. The table in prologues.rs
# says for each where its jump is, or why it is refused.
	.intel_syntax noprefix
	.macro FN name
	.p2align 4
	.globl \name
	.type \name, @function
\name:
	.endm
	.macro END name
	.size \name, . - \name
	.endm

	.data
seven:	.long 7
leaf_pointer:
	.quad leaf

	.text
	.p2align 4
leaf:	mov eax, 40
	ret

# ---- undone: the stack

FN keep_push
	push rbx
	mov rbx, rdi
	lea eax, [rbx + 1]
	pop rbx
	ret
END keep_push

FN keep_push_with_prefix
	push r12
	mov r12, rdi
	lea eax, [r12 + 2]
	pop r12
	ret
END keep_push_with_prefix

FN keep_push_small_number
	push 3
	mov rcx, rdi
	pop rax
	add eax, ecx
	ret
END keep_push_small_number

FN keep_push_large_number
	push 0x12345
	mov rcx, rdi
	pop rax
	add eax, ecx
	ret
END keep_push_large_number

FN keep_push_of_memory
	push qword ptr [rip + seven]
	mov rcx, rdi
	pop rax
	lea eax, [eax + ecx]
	ret
END keep_push_of_memory

FN keep_push_of_return_address	# the copy reads the stack of its own call
	push qword ptr [rsp]
	add rsp, 8
	lea eax, [rdi + 6]
	ret
END keep_push_of_return_address

FN keep_push_rax	# compilers align the stack like that
	push rax
	mov [rsp], rdi
	mov eax, [rsp]
	add eax, 7
	pop rcx
	ret
END keep_push_rax

FN keep_sub
	sub rsp, 24
	mov [rsp + 8], rdi
	mov eax, [rsp + 8]
	add eax, 8
	add rsp, 24
	ret
END keep_sub

FN keep_sub_large
	sub rsp, 0x408
	mov [rsp + 0x400], rdi
	mov eax, [rsp + 0x400]
	add eax, 9
	add rsp, 0x408
	ret
END keep_sub_large

# ---- repeated

FN keep_xor
	xor eax, eax
	add eax, edi
	add eax, 10
	ret
END keep_xor

FN keep_mov_number
	mov eax, 11
	add rax, rdi
	nop
	nop
	ret
END keep_mov_number

FN keep_mov_of_memory	# the copy refers to its own place, too
	mov eax, [rip + seven]
	lea eax, [rax + rdi + 5]
	nop
	ret
END keep_mov_of_memory

FN keep_lea
	lea rax, [rip + seven]
	mov eax, [rax]
	add eax, edi
	add eax, 6
	ret
END keep_lea

FN keep_mov_of_thread
	mov rax, fs:0x28
	lea eax, [rdi + 14]
	nop
	nop
	ret
END keep_mov_of_thread

FN keep_test	# flags from the kept instruction are used behind the jump
	test edi, edi
	mov eax, 15
	je 1f
	mov eax, 1015
1:	ret
END keep_test

FN keep_cmp_with_memory
	cmp dword ptr [rip + seven], 7
	lea rax, [rdi + 16]
	nop
	je 1f
	ud2
1:	ret
END keep_cmp_with_memory

FN keep_realigned
	lea r10, [rsp + 8]
	and rsp, -16
	lea eax, [rdi + 17]
	lea rsp, [r10 - 8]
	ret
END keep_realigned

FN keep_nop
	nop
	push rbx
	mov rbx, rdi
	lea eax, [rbx + 18]
	pop rbx
	ret
END keep_nop

# ---- behind endbr64 two are kept

FN keep_endbr_push
	endbr64
	push rbp
	mov rbp, rsp
	push r15
	lea eax, [rdi + 20]
	pop r15
	pop rbp
	ret
END keep_endbr_push

FN keep_endbr_sub
	endbr64
	sub rsp, 24
	mov [rsp + 8], rdi
	mov eax, [rsp + 8]
	add eax, 21
	add rsp, 24
	ret
END keep_endbr_sub

FN keep_endbr_xor
	endbr64
	xor eax, eax
	lea eax, [rax + rdi + 22]
	nop
	ret
END keep_endbr_xor

# ---- what lies under the jump

FN keep_moves_memory
	push rbx
	mov eax, [rip + seven]
	lea eax, [rax + rdi + 23]
	pop rbx
	ret
END keep_moves_memory

FN keep_moves_branch
	push rbx
	test edi, edi
	je 1f
	mov eax, 1031
	pop rbx
	ret
1:	mov eax, 31
	pop rbx
	ret
END keep_moves_branch

FN keep_moves_call	# it ends where the jump ends
	push rbx
	call leaf
	lea eax, [rax + rdi]
	pop rbx
	ret
END keep_moves_call

FN keep_moves_jump
	push rbx
	jmp 1f
	.skip 200, 0xcc
1:	lea eax, [rdi + 33]
	pop rbx
	ret
END keep_moves_jump

FN keep_pauses	# threads stay long inside of what is overwritten
	push rbx
	pause
	pause
	nop
	mov rbx, rdi
	lea eax, [rbx + 34]
	pop rbx
	ret
END keep_pauses

FN keep_recursion	# calls itself: a call as any other
	push rbx
	mov rbx, rdi
	xor eax, eax
	test edi, edi
	je 1f
	lea rdi, [rbx - 1]
	call keep_recursion
	lea eax, [rax + 1]
1:	pop rbx
	ret
END keep_recursion

	.p2align 12
	.skip 4095	# the kept byte on one page, the jump on the next
	.globl keep_over_pages
	.type keep_over_pages, @function
keep_over_pages:
	push rbx
	mov rbx, rdi
	lea eax, [rbx + 36]
	pop rbx
	ret
END keep_over_pages

# ---- jumps to another function

FN keep_jump
	endbr64
	jmp behind_jump
END keep_jump
	.p2align 4
	.skip 300
	.type behind_jump, @function
behind_jump:		# not exported: the table for unwinding says how long it is
	.cfi_startproc
	endbr64
	push rbx
	.cfi_def_cfa_offset 16
	.cfi_offset rbx, -16
behind_jump_patch:
	mov rbx, rdi
	lea eax, [rbx + 37]
	pop rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	jmp behind_jump_patch	# so this is none of its code

FN keep_alias
	jmp keep_push
END keep_alias

# ---- refused: the kept instruction

FN refuse_frame_pointer
	mov rbp, rbp
	mov eax, 1
	ret
END refuse_frame_pointer

FN refuse_argument
	mov edi, edi
	mov eax, 1
	nop
	ret
END refuse_argument

FN refuse_store
	mov [rsp - 8], rdi
	mov eax, 1
	ret
END refuse_store

FN refuse_pop
	pop rax
	push rax
	mov eax, 1
	ret
END refuse_pop

FN refuse_add	# taking it back would take more than it gave
	add rsp, -24
	mov eax, 1
	add rsp, 24
	ret
END refuse_add

FN refuse_call
	call leaf
	nop
	ret
END refuse_call

FN refuse_branch
	je 1f
	mov eax, 1
1:	ret
END refuse_branch

FN refuse_jump_over_memory
	endbr64
	jmp [rip + leaf_pointer]
END refuse_jump_over_memory

FN refuse_endbr_argument
	endbr64
	mov edi, edi
	mov eax, 1
	nop
	ret
END refuse_endbr_argument

# ---- refused: no room

FN refuse_return
	ret
	nop
END refuse_return

FN refuse_endbr_return
	endbr64
	ret
END refuse_endbr_return

FN refuse_short
	xor eax, eax
	ret
END refuse_short

FN refuse_invalid
	push rbx
	.byte 0x06, 0x06, 0x06, 0x06, 0x06
END refuse_invalid

# ---- refused: somebody comes to where the jump would be

FN refuse_loop_at_jump
	xor eax, eax
1:	add eax, edi
	dec edi
	jnz 1b
	nop
	ret
END refuse_loop_at_jump

FN refuse_loop_into_jump
	push rbx
	mov rbx, rdi
1:	dec ebx
	jns 1b
	mov eax, 1
	pop rbx
	ret
END refuse_loop_into_jump

FN refuse_loop_to_entry	# would come to the hook with a loop's registers
1:	test edi, edi
	je 2f
	lea ecx, [rcx + rdi]
	dec edi
	jmp 1b
2:	mov eax, ecx
	ret
END refuse_loop_to_entry

FN refuse_pointer_into_jump
	push rbx
1:	lea rbx, [rip + 1b]
	mov eax, 1
	pop rbx
	ret
END refuse_pointer_into_jump

FN refuse_call_under_jump	# comes back into the middle of it
	push rbx
	call [rsp]
	mov eax, 1
	pop rbx
	ret
END refuse_call_under_jump

FN refuse_system_call_under_jump
	mov eax, 39
	syscall
	nop
	nop
	nop
	ret
END refuse_system_call_under_jump

FN refuse_variadic
	push rbp
	mov rbp, rsp
	sub rsp, 88
	mov [rbp - 80], rsi
	test al, al
	je 1f
	movaps [rbp - 64], xmm0
1:	mov eax, 1
	leave
	ret
END refuse_variadic

FN refuse_chain_of_jumps
	jmp refuse_chain_of_jumps
END refuse_chain_of_jumps

# ---- arguments in registers and on the stack: u64 f(u64 x8, double x8)

FN takes_many
	push rbx
	mov rbx, [rsp + 16]
	lea rax, [rdi + rsi]
	imul rax, rax, 3
	add rax, rdx
	imul rax, rax, 3
	add rax, rcx
	imul rax, rax, 3
	add rax, r8
	imul rax, rax, 3
	add rax, r9
	imul rax, rax, 3
	add rax, rbx
	imul rax, rax, 3
	add rax, [rsp + 24]
	addsd xmm0, xmm7
	cvttsd2si rbx, xmm0
	add rax, rbx
	pop rbx
	ret
END takes_many

	.section .note.GNU-stack, "", @progbits
