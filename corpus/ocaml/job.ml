(* An OCaml program: a large array, a table, garbage and compaction, threads, timers, a caught stack overflow.
   usage: job MIB *)
let mix x =
  let a = (x lxor (x lsr 13)) * 668265263 land max_int in
  let b = (a lxor (a lsr 17)) * 2246822519 land max_int in
  b lxor (b lsr 23)

let filled n seed = Array.init n (fun i -> mix (i + seed))
let digest words = Array.fold_left (fun h w -> (h * 31 + w) land max_int) 1 words
let rec endless n = 1 + endless (n + 1)

let () =
  let mib = int_of_string Sys.argv.(1) in
  let ticks = ref 0 in
  Sys.set_signal Sys.sigalrm (Sys.Signal_handle (fun _ -> incr ticks));
  let every = { Unix.it_interval = 0.01; it_value = 0.01 } in
  ignore (Unix.setitimer Unix.ITIMER_REAL every);
  let words = filled (mib * 65536) 0 in
  Printf.printf "filled %d %x\n%!" (Array.length words) (digest words);
  let table = Hashtbl.create 16 in
  for i = 1 to mib * 3000 do Hashtbl.replace table (mix i) (i, string_of_int i) done;
  let sum = Hashtbl.fold (fun k (i, s) sum -> (sum + k + i + String.length s) land max_int) table 0 in
  Printf.printf "table %d %x\n%!" (Hashtbl.length table) sum;
  let sums = Array.make 3 0 in
  let work k =
    for round = 1 to 8 do
      sums.(k) <- sums.(k) lxor digest (filled (mib * 600) (k * 1000 * round));
      if k = 0 then Gc.full_major ();
      Thread.yield ()
    done
  in
  List.iter Thread.join (List.map (Thread.create work) [ 0; 1; 2 ]);
  Printf.printf "threads %x %x %x\n%!" sums.(0) sums.(1) sums.(2);
  let overflow = try string_of_int (endless 0) with Stack_overflow -> "caught" in
  Printf.printf "overflow %s\n%!" overflow;
  Gc.compact ();
  ignore (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = 0.; it_value = 0. });
  Printf.printf "again %x %b\n" (digest words) (!ticks > 0)
