//! Every other function of glibc that takes a stream: what was lent is given back, and glibc goes
//! on with the arguments as they came, how many and of what type they may be.

use std::arch::naked_asm;

use crate::enter::{Act, Entry, slowly};
use crate::slots::COUNT;

/// Functions whose stream is in a register. While no stream has a slot, or this one was written
/// last (0x800), nothing can be lent: they cost three comparisons.
macro_rules! using { ($register:literal: $($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn $name() {
        static ENTRY: Entry = Entry::new(name!($name), Act::Uses);
        naked_asm!(
            concat!("mov r10, ", $register),
            "mov r11, qword ptr [rip + {entry}]",
            "test r11, r11",
            "jz 3f",
            "cmp dword ptr [rip + {count}], 0",
            "je 2f",
            "test r10, r10",
            "jz 2f",
            "test dword ptr [r10], 0x800",
            "jz 3f",
            "2:",
            "jmp r11",
            "3:",
            "lea r11, [rip + {entry}]",
            "jmp {slowly}",
            entry = sym ENTRY,
            count = sym COUNT,
            slowly = sym slowly,
        )
    }
)* } }

/// Functions that always look.
macro_rules! looking { ($register:literal $act:ident: $($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    #[unsafe(naked)]
    unsafe extern "C" fn $name() {
        static ENTRY: Entry = Entry::new(name!($name), Act::$act);
        naked_asm!(
            concat!("mov r10, ", $register),
            "lea r11, [rip + {entry}]",
            "jmp {slowly}",
            entry = sym ENTRY,
            slowly = sym slowly,
        )
    }
)* } }

macro_rules! name {
    ($name:ident) => {
        match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("no name"),
        }
    };
}

using! { "rdi":
    fprintf vfprintf _IO_fprintf _IO_vfprintf __fprintf_chk __vfprintf_chk
    fwprintf vfwprintf __fwprintf_chk __vfwprintf_chk
    fscanf vfscanf __isoc99_fscanf __isoc99_vfscanf __isoc23_fscanf __isoc23_vfscanf
    __vfscanf _IO_vfscanf
    fwscanf vfwscanf __isoc99_fwscanf __isoc99_vfwscanf __isoc23_fwscanf __isoc23_vfwscanf
    fgetwc getwc fgetwc_unlocked getwc_unlocked __wuflow __wunderflow fwide
    __overflow __woverflow
    fflush fflush_unlocked _IO_fflush rewind fgetpos fgetpos64 fsetpos fsetpos64
    _IO_fgetpos _IO_fgetpos64 _IO_fsetpos _IO_fsetpos64 _IO_seekoff _IO_seekpos
    setvbuf setbuf setbuffer setlinebuf _IO_setvbuf _IO_setbuffer
    __fpurge getw getmntent getmntent_r __getmntent_r addmntent
    fgetpwent fgetpwent_r fgetgrent fgetgrent_r fgetspent fgetspent_r fgetsgent fgetsgent_r
    _IO_sgetn _IO_getline _IO_getline_info _IO_peekc_locked _IO_file_underflow _IO_file_seekoff
    _IO_file_sync _IO_file_setbuf _IO_switch_to_get_mode _IO_sputbackc _IO_sungetc
    _IO_padn
}
using! { "rsi":
    fputc putc _IO_putc fputc_unlocked putc_unlocked fputs fputs_unlocked _IO_fputs
    fputwc putwc fputwc_unlocked putwc_unlocked fputws fputws_unlocked ungetwc
    putw putpwent putgrent putspent putsgent
}
using! { "rdx": fgetws fgetws_unlocked }
using! { "rcx": fwrite_unlocked __fgetws_chk __fgetws_unlocked_chk }
looking! { "rdi" Ends: fclose _IO_fclose pclose endmntent _IO_file_close_it }
looking! { "rdx" Ends: freopen freopen64 }
looking! { "rdi" UsesStdin:
    scanf vscanf __isoc99_scanf __isoc99_vscanf __isoc23_scanf __isoc23_vscanf
    wscanf vwscanf __isoc99_wscanf __isoc99_vwscanf __isoc23_wscanf __isoc23_vwscanf
    getwchar getwchar_unlocked gets _IO_gets __gets_chk
}
