target datalayout = "e-m:e-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"

%struct.board = type { %struct.line, %struct.line, %struct.line, %union.job, i64, i64, [6 x i64], [0 x %struct.line] }
%struct.line = type { i64, [7 x i64] }
%union.job = type { [16 x i64] }
%struct.step = type { i64, i64, i64, i64, i64, i64, i64 }
%struct.anon = type { ptr, ptr, ptr, ptr, ptr, i64 }
%struct.matrix = type { ptr, ptr, ptr, i64, i64, i64, i64, i64, i64, i64 }
%struct.anon.0 = type { ptr, ptr, ptr, ptr, ptr, ptr, i64, i64, i64, i64 }
%struct.anon.1 = type { ptr, ptr, ptr, ptr, i64 }
%struct.anon.2 = type { ptr, ptr, i64 }
%struct.attention = type { i64, i64, i64, i64, i64, ptr, ptr }
%struct.block = type { ptr, ptr, ptr, ptr, i64, float, i64, i64 }

@JOB_FUNCTIONS = internal constant [10 x ptr] [ptr @matmul, ptr @attend, ptr @round4, ptr @round8, ptr @swish_all, ptr @gelu_all, ptr @erf_gelu_all, ptr @relu_all, ptr @square_all, ptr @log_sum_exp], align 16
@TILES = internal constant [2 x [2 x [5 x ptr]]] [[2 x [5 x ptr]] [[5 x ptr] [ptr null, ptr @tile_4_1_NO_AHEAD, ptr @tile_4_2_NEAR, ptr null, ptr null], [5 x ptr] [ptr null, ptr null, ptr @tile_4_2_FAR, ptr @tile_4_3_FAR, ptr @tile_4_4_FAR]], [2 x [5 x ptr]] [[5 x ptr] [ptr null, ptr @tile_8_1_NO_AHEAD, ptr @tile_8_2_NEAR, ptr null, ptr null], [5 x ptr] [ptr null, ptr null, ptr @tile_8_2_FAR, ptr @tile_8_3_FAR, ptr @tile_8_4_FAR]]], align 16
@partials = internal global [262144 x float] zeroinitializer, align 16
@parts_left = internal global [1024 x i64] zeroinitializer, align 16
@BLOCK_FUNCTIONS = internal constant [5 x ptr] [ptr null, ptr @add_block_1, ptr @add_block_2, ptr @add_block_3, ptr @add_block_4], align 16
@exponential.series = internal constant [6 x float] [float 0x3F81111120000000, float 0x3FA5555560000000, float 0x3FC5555560000000, float 5.000000e-01, float 1.000000e+00, float 1.000000e+00], align 16
@erf_gelu.series = internal constant [4 x float] [float 0xBFF7401C60000000, float 0x3FF6BE1C60000000, float 0xBFD23531C0000000, float 0x3FD04F20C0000000], align 16

define dso_local void @help(ptr noundef %0, i64 noundef %1) #0 {
  %3 = alloca ptr, align 8
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = alloca i32, align 4
  store ptr %0, ptr %3, align 8
  store i64 %1, ptr %4, align 8
  store i64 0, ptr %5, align 8
  br label %7

7:
  %8 = load i64, ptr %5, align 8
  %9 = icmp slt i64 %8, 200000
  br i1 %9, label %10, label %39

10:
  %11 = load ptr, ptr %3, align 8
  %12 = load i64, ptr %4, align 8
  %13 = call i64 @compute_parts(ptr noundef %11, i64 noundef %12) #13
  %14 = icmp sgt i64 %13, 0
  br i1 %14, label %15, label %16

15:
  store i64 0, ptr %5, align 8
  br label %7, !llvm.loop !3

16:
  call void @pause() #13
  %17 = load ptr, ptr %3, align 8
  %18 = getelementptr inbounds nuw %struct.board, ptr %17, i32 0, i32 2
  %19 = getelementptr inbounds nuw %struct.line, ptr %18, i32 0, i32 0
  %20 = call i64 @load(ptr noundef %19) #13
  %21 = icmp eq i64 %20, 0
  %22 = zext i1 %21 to i32
  store i32 %22, ptr %6, align 4
  %23 = load i32, ptr %6, align 4
  %24 = icmp ne i32 %23, 0
  br i1 %24, label %29, label %25

25:
  %26 = load i64, ptr %5, align 8
  %27 = srem i64 %26, 200
  %28 = icmp eq i64 %27, 0
  br i1 %28, label %29, label %31

29:
  %30 = call i32 @sched_yield() #13
  br label %31

31:
  %32 = load i32, ptr %6, align 4
  %33 = icmp ne i32 %32, 0
  %34 = zext i1 %33 to i64
  %35 = select i1 %33, i32 50, i32 1
  %36 = sext i32 %35 to i64
  %37 = load i64, ptr %5, align 8
  %38 = add nsw i64 %37, %36
  store i64 %38, ptr %5, align 8
  br label %7, !llvm.loop !3

39:
  ret void
}

define internal i64 @compute_parts(ptr noundef %0, i64 noundef %1) #0 {
  %3 = alloca ptr, align 8
  %4 = alloca i64, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  %8 = alloca i64, align 8
  %9 = alloca ptr, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  %15 = alloca i64, align 8
  %16 = alloca i64, align 8
  %17 = alloca i64, align 8
  store ptr %0, ptr %3, align 8
  store i64 %1, ptr %4, align 8
  %18 = load ptr, ptr %3, align 8
  %19 = getelementptr inbounds nuw %struct.board, ptr %18, i32 0, i32 1
  %20 = getelementptr inbounds nuw %struct.line, ptr %19, i32 0, i32 0
  %21 = load i64, ptr %20, align 8
  store i64 %21, ptr %5, align 8
  store i64 0, ptr %6, align 8
  store i64 0, ptr %7, align 8
  br label %22

22:
  %23 = load i64, ptr %7, align 8
  %24 = load i64, ptr %5, align 8
  %25 = icmp slt i64 %23, %24
  br i1 %25, label %26, label %102

26:
  %27 = load i64, ptr %4, align 8
  %28 = load i64, ptr %7, align 8
  %29 = add nsw i64 %27, %28
  %30 = load i64, ptr %5, align 8
  %31 = srem i64 %29, %30
  store i64 %31, ptr %8, align 8
  %32 = load ptr, ptr %3, align 8
  %33 = getelementptr inbounds nuw %struct.board, ptr %32, i32 0, i32 7
  %34 = load i64, ptr %8, align 8
  %35 = getelementptr inbounds [0 x %struct.line], ptr %33, i64 0, i64 %34
  %36 = getelementptr inbounds nuw %struct.line, ptr %35, i32 0, i32 0
  store ptr %36, ptr %9, align 8
  %37 = load i64, ptr %6, align 8
  store i64 %37, ptr %10, align 8
  br label %38

38:
  %39 = load ptr, ptr %9, align 8
  %40 = call i64 @load(ptr noundef %39) #13
  %41 = icmp slt i64 %40, 4
  br i1 %41, label %42, label %48

42:
  %43 = load ptr, ptr %9, align 8
  store i64 1, ptr %12, align 8
  %44 = load i64, ptr %12, align 8
  %45 = atomicrmw add ptr %43, i64 %44 seq_cst, align 8
  store i64 %45, ptr %13, align 8
  %46 = load i64, ptr %13, align 8
  store i64 %46, ptr %11, align 8
  %47 = icmp slt i64 %46, 4
  br label %48

48:
  %49 = phi i1 [ false, %38 ], [ %47, %42 ]
  br i1 %49, label %50, label %84

50:
  %51 = load i64, ptr %8, align 8
  %52 = mul nsw i64 %51, 4
  %53 = load i64, ptr %11, align 8
  %54 = add nsw i64 %52, %53
  store i64 %54, ptr %14, align 8
  %55 = load ptr, ptr %3, align 8
  %56 = getelementptr inbounds nuw %struct.board, ptr %55, i32 0, i32 1
  %57 = getelementptr inbounds nuw %struct.line, ptr %56, i32 0, i32 0
  %58 = load i64, ptr %57, align 8
  %59 = mul nsw i64 %58, 4
  store i64 %59, ptr %15, align 8
  %60 = load ptr, ptr %3, align 8
  %61 = getelementptr inbounds nuw %struct.board, ptr %60, i32 0, i32 5
  %62 = load i64, ptr %61, align 8
  %63 = getelementptr inbounds [10 x ptr], ptr @JOB_FUNCTIONS, i64 0, i64 %62
  %64 = load ptr, ptr %63, align 8
  %65 = load ptr, ptr %3, align 8
  %66 = getelementptr inbounds nuw %struct.board, ptr %65, i32 0, i32 3
  %67 = load ptr, ptr %3, align 8
  %68 = getelementptr inbounds nuw %struct.board, ptr %67, i32 0, i32 4
  %69 = load i64, ptr %68, align 8
  %70 = load i64, ptr %14, align 8
  %71 = mul nsw i64 %69, %70
  %72 = load i64, ptr %15, align 8
  %73 = sdiv i64 %71, %72
  %74 = load ptr, ptr %3, align 8
  %75 = getelementptr inbounds nuw %struct.board, ptr %74, i32 0, i32 4
  %76 = load i64, ptr %75, align 8
  %77 = load i64, ptr %14, align 8
  %78 = add nsw i64 %77, 1
  %79 = mul nsw i64 %76, %78
  %80 = load i64, ptr %15, align 8
  %81 = sdiv i64 %79, %80
  call void %64(ptr noundef %66, i64 noundef %73, i64 noundef %81) #13
  %82 = load i64, ptr %6, align 8
  %83 = add nsw i64 %82, 1
  store i64 %83, ptr %6, align 8
  br label %38, !llvm.loop !5

84:
  %85 = load i64, ptr %6, align 8
  %86 = load i64, ptr %10, align 8
  %87 = icmp sgt i64 %85, %86
  br i1 %87, label %88, label %98

88:
  %89 = load ptr, ptr %3, align 8
  %90 = getelementptr inbounds nuw %struct.board, ptr %89, i32 0, i32 0
  %91 = getelementptr inbounds nuw %struct.line, ptr %90, i32 0, i32 0
  %92 = load i64, ptr %6, align 8
  %93 = load i64, ptr %10, align 8
  %94 = sub nsw i64 %92, %93
  store i64 %94, ptr %16, align 8
  %95 = load i64, ptr %16, align 8
  %96 = atomicrmw add ptr %91, i64 %95 seq_cst, align 8
  store i64 %96, ptr %17, align 8
  %97 = load i64, ptr %17, align 8
  br label %98

98:
  br label %99

99:
  %100 = load i64, ptr %7, align 8
  %101 = add nsw i64 %100, 1
  store i64 %101, ptr %7, align 8
  br label %22, !llvm.loop !6

102:
  %103 = load i64, ptr %6, align 8
  ret i64 %103
}

define internal void @pause() #1 {
  call void @llvm.x86.sse2.pause()
  ret void
}

define internal i64 @load(ptr noundef %0) #1 {
  %2 = alloca ptr, align 8
  %3 = alloca i64, align 8
  store ptr %0, ptr %2, align 8
  %4 = load ptr, ptr %2, align 8
  %5 = load atomic i64, ptr %4 seq_cst, align 8
  store i64 %5, ptr %3, align 8
  %6 = load i64, ptr %3, align 8
  ret i64 %6
}

declare i32 @sched_yield() #2

define dso_local void @run(ptr noundef %0, ptr noundef %1, i64 noundef %2, ptr noundef %3, i64 noundef %4, i64 noundef %5) #0 {
  %7 = alloca ptr, align 8
  %8 = alloca ptr, align 8
  %9 = alloca i64, align 8
  %10 = alloca ptr, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca ptr, align 8
  %14 = alloca ptr, align 8
  %15 = alloca ptr, align 8
  %16 = alloca ptr, align 8
  %17 = alloca ptr, align 8
  %18 = alloca ptr, align 8
  %19 = alloca i64, align 8
  %20 = alloca i64, align 8
  %21 = alloca ptr, align 8
  %22 = alloca ptr, align 8
  %23 = alloca %union.job, align 8
  %24 = alloca i64, align 8
  %25 = alloca i64, align 8
  %26 = alloca i64, align 8
  store ptr %0, ptr %7, align 8
  store ptr %1, ptr %8, align 8
  store i64 %2, ptr %9, align 8
  store ptr %3, ptr %10, align 8
  store i64 %4, ptr %11, align 8
  store i64 %5, ptr %12, align 8
  %27 = load ptr, ptr %10, align 8
  %28 = getelementptr inbounds ptr, ptr %27, i64 3
  %29 = load ptr, ptr %28, align 8
  store ptr %29, ptr %13, align 8
  %30 = load ptr, ptr %7, align 8
  %31 = getelementptr inbounds nuw %struct.board, ptr %30, i32 0, i32 2
  %32 = getelementptr inbounds nuw %struct.line, ptr %31, i32 0, i32 0
  store i64 1, ptr %32, align 8
  %33 = load ptr, ptr %8, align 8
  store ptr %33, ptr %14, align 8
  br label %34

34:
  %35 = load ptr, ptr %14, align 8
  %36 = load ptr, ptr %8, align 8
  %37 = load i64, ptr %9, align 8
  %38 = getelementptr inbounds %struct.step, ptr %36, i64 %37
  %39 = icmp ult ptr %35, %38
  br i1 %39, label %40, label %282

40:
  %41 = load ptr, ptr %10, align 8
  %42 = load ptr, ptr %14, align 8
  %43 = getelementptr inbounds nuw %struct.step, ptr %42, i32 0, i32 1
  %44 = load i64, ptr %43, align 8
  %45 = getelementptr inbounds ptr, ptr %41, i64 %44
  %46 = load ptr, ptr %45, align 8
  store ptr %46, ptr %15, align 8
  %47 = load ptr, ptr %10, align 8
  %48 = load ptr, ptr %14, align 8
  %49 = getelementptr inbounds nuw %struct.step, ptr %48, i32 0, i32 2
  %50 = load i64, ptr %49, align 8
  %51 = getelementptr inbounds ptr, ptr %47, i64 %50
  %52 = load ptr, ptr %51, align 8
  store ptr %52, ptr %16, align 8
  %53 = load ptr, ptr %10, align 8
  %54 = load ptr, ptr %14, align 8
  %55 = getelementptr inbounds nuw %struct.step, ptr %54, i32 0, i32 3
  %56 = load i64, ptr %55, align 8
  %57 = getelementptr inbounds ptr, ptr %53, i64 %56
  %58 = load ptr, ptr %57, align 8
  store ptr %58, ptr %17, align 8
  %59 = load ptr, ptr %10, align 8
  %60 = load ptr, ptr %14, align 8
  %61 = getelementptr inbounds nuw %struct.step, ptr %60, i32 0, i32 3
  %62 = load i64, ptr %61, align 8
  %63 = getelementptr inbounds ptr, ptr %59, i64 %62
  store ptr %63, ptr %18, align 8
  %64 = load ptr, ptr %14, align 8
  %65 = getelementptr inbounds nuw %struct.step, ptr %64, i32 0, i32 5
  %66 = load i64, ptr %65, align 8
  store i64 %66, ptr %19, align 8
  %67 = load ptr, ptr %14, align 8
  %68 = getelementptr inbounds nuw %struct.step, ptr %67, i32 0, i32 6
  %69 = load i64, ptr %68, align 8
  store i64 %69, ptr %20, align 8
  %70 = load i64, ptr %20, align 8
  %71 = inttoptr i64 %70 to ptr
  store ptr %71, ptr %21, align 8
  %72 = load i64, ptr %20, align 8
  %73 = inttoptr i64 %72 to ptr
  store ptr %73, ptr %22, align 8
  %74 = load i64, ptr %11, align 8
  %75 = load i64, ptr %19, align 8
  %76 = mul nsw i64 %74, %75
  %77 = sdiv i64 %76, 8
  store i64 %77, ptr %24, align 8
  %78 = load ptr, ptr %14, align 8
  %79 = getelementptr inbounds nuw %struct.step, ptr %78, i32 0, i32 0
  %80 = load i64, ptr %79, align 8
  switch i64 %80, label %266 [
    i64 10, label %81
    i64 11, label %96
    i64 12, label %111
    i64 13, label %118
    i64 14, label %125
    i64 15, label %138
    i64 16, label %152
    i64 0, label %191
    i64 1, label %216
    i64 2, label %242
    i64 3, label %242
    i64 9, label %264
  ]

81:
  %82 = load ptr, ptr %15, align 8
  %83 = load ptr, ptr %16, align 8
  %84 = load i64, ptr %11, align 8
  %85 = load i64, ptr %19, align 8
  %86 = mul nsw i64 %84, %85
  %87 = load ptr, ptr %14, align 8
  %88 = getelementptr inbounds nuw %struct.step, ptr %87, i32 0, i32 4
  %89 = load i64, ptr %88, align 8
  %90 = sdiv i64 %86, %89
  %91 = load ptr, ptr %14, align 8
  %92 = getelementptr inbounds nuw %struct.step, ptr %91, i32 0, i32 4
  %93 = load i64, ptr %92, align 8
  %94 = load i64, ptr %20, align 8
  %95 = trunc i64 %94 to i32
  call void @norm(ptr noundef %82, ptr noundef %83, i64 noundef %90, i64 noundef %93, i32 noundef %95, i32 noundef 0) #13
  br label %279

96:
  %97 = load ptr, ptr %15, align 8
  %98 = load ptr, ptr %16, align 8
  %99 = load i64, ptr %11, align 8
  %100 = load i64, ptr %19, align 8
  %101 = mul nsw i64 %99, %100
  %102 = load ptr, ptr %14, align 8
  %103 = getelementptr inbounds nuw %struct.step, ptr %102, i32 0, i32 4
  %104 = load i64, ptr %103, align 8
  %105 = sdiv i64 %101, %104
  %106 = load ptr, ptr %14, align 8
  %107 = getelementptr inbounds nuw %struct.step, ptr %106, i32 0, i32 4
  %108 = load i64, ptr %107, align 8
  %109 = load i64, ptr %20, align 8
  %110 = trunc i64 %109 to i32
  call void @norm(ptr noundef %97, ptr noundef %98, i64 noundef %105, i64 noundef %108, i32 noundef %110, i32 noundef 1) #13
  br label %279

111:
  %112 = load ptr, ptr %15, align 8
  %113 = load ptr, ptr %16, align 8
  %114 = load ptr, ptr %17, align 8
  %115 = load i64, ptr %11, align 8
  %116 = load i64, ptr %19, align 8
  %117 = load i64, ptr %20, align 8
  call void @add(ptr noundef %112, ptr noundef %113, ptr noundef %114, i64 noundef %115, i64 noundef %116, i64 noundef %117) #13
  br label %279

118:
  %119 = load ptr, ptr %15, align 8
  %120 = load ptr, ptr %16, align 8
  %121 = load ptr, ptr %17, align 8
  %122 = load i64, ptr %11, align 8
  %123 = load i64, ptr %19, align 8
  %124 = load i64, ptr %20, align 8
  call void @multiply(ptr noundef %119, ptr noundef %120, ptr noundef %121, i64 noundef %122, i64 noundef %123, i64 noundef %124) #13
  br label %279

125:
  %126 = load ptr, ptr %15, align 8
  %127 = load ptr, ptr %16, align 8
  %128 = load ptr, ptr %17, align 8
  %129 = load ptr, ptr %10, align 8
  %130 = load ptr, ptr %14, align 8
  %131 = getelementptr inbounds nuw %struct.step, ptr %130, i32 0, i32 4
  %132 = load i64, ptr %131, align 8
  %133 = getelementptr inbounds ptr, ptr %129, i64 %132
  %134 = load ptr, ptr %133, align 8
  %135 = load i64, ptr %11, align 8
  %136 = load i64, ptr %19, align 8
  %137 = load i64, ptr %20, align 8
  call void @rotate(ptr noundef %126, ptr noundef %127, ptr noundef %128, ptr noundef %134, i64 noundef %135, i64 noundef %136, i64 noundef %137) #13
  br label %279

138:
  %139 = load ptr, ptr %22, align 8
  %140 = load ptr, ptr %16, align 8
  %141 = load ptr, ptr %17, align 8
  %142 = load ptr, ptr %10, align 8
  %143 = getelementptr inbounds ptr, ptr %142, i64 0
  %144 = load ptr, ptr %143, align 8
  %145 = load ptr, ptr %10, align 8
  %146 = getelementptr inbounds ptr, ptr %145, i64 1
  %147 = load ptr, ptr %146, align 8
  %148 = load ptr, ptr %10, align 8
  %149 = getelementptr inbounds ptr, ptr %148, i64 2
  %150 = load ptr, ptr %149, align 8
  %151 = load i64, ptr %11, align 8
  call void @store(ptr noundef %139, ptr noundef %140, ptr noundef %141, ptr noundef %144, ptr noundef %147, ptr noundef %150, i64 noundef %151) #13
  br label %279

152:
  %153 = load i64, ptr %12, align 8
  store i64 %153, ptr %11, align 8
  store i64 0, ptr %25, align 8
  br label %154

154:
  %155 = load i64, ptr %25, align 8
  %156 = load i64, ptr %11, align 8
  %157 = icmp slt i64 %155, %156
  br i1 %157, label %158, label %190

158:
  store i64 0, ptr %26, align 8
  br label %159

159:
  %160 = load i64, ptr %26, align 8
  %161 = load i64, ptr %19, align 8
  %162 = icmp slt i64 %160, %161
  br i1 %162, label %163, label %186

163:
  %164 = load ptr, ptr %16, align 8
  %165 = load ptr, ptr %13, align 8
  %166 = load i64, ptr %25, align 8
  %167 = getelementptr inbounds i32, ptr %165, i64 %166
  %168 = load i32, ptr %167, align 4
  %169 = sext i32 %168 to i64
  %170 = load i64, ptr %19, align 8
  %171 = mul nsw i64 %169, %170
  %172 = load i64, ptr %26, align 8
  %173 = add nsw i64 %171, %172
  %174 = getelementptr inbounds float, ptr %164, i64 %173
  %175 = load float, ptr %174, align 4
  %176 = load ptr, ptr %15, align 8
  %177 = load i64, ptr %25, align 8
  %178 = load i64, ptr %19, align 8
  %179 = mul nsw i64 %177, %178
  %180 = load i64, ptr %26, align 8
  %181 = add nsw i64 %179, %180
  %182 = getelementptr inbounds float, ptr %176, i64 %181
  store float %175, ptr %182, align 4
  br label %183

183:
  %184 = load i64, ptr %26, align 8
  %185 = add nsw i64 %184, 1
  store i64 %185, ptr %26, align 8
  br label %159, !llvm.loop !7

186:
  br label %187

187:
  %188 = load i64, ptr %25, align 8
  %189 = add nsw i64 %188, 1
  store i64 %189, ptr %25, align 8
  br label %154, !llvm.loop !8

190:
  br label %279

191:
  %192 = load ptr, ptr %21, align 8
  %193 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 0
  store ptr %192, ptr %193, align 8
  %194 = load ptr, ptr %18, align 8
  %195 = getelementptr inbounds ptr, ptr %194, i64 0
  %196 = load ptr, ptr %195, align 8
  %197 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 1
  store ptr %196, ptr %197, align 8
  %198 = load ptr, ptr %18, align 8
  %199 = getelementptr inbounds ptr, ptr %198, i64 1
  %200 = load ptr, ptr %199, align 8
  %201 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 2
  store ptr %200, ptr %201, align 8
  %202 = load ptr, ptr %18, align 8
  %203 = getelementptr inbounds ptr, ptr %202, i64 2
  %204 = load ptr, ptr %203, align 8
  %205 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 3
  store ptr %204, ptr %205, align 8
  %206 = load ptr, ptr %15, align 8
  %207 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 4
  store ptr %206, ptr %207, align 8
  %208 = load i64, ptr %11, align 8
  %209 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 5
  store i64 %208, ptr %209, align 8
  %210 = load ptr, ptr %21, align 8
  %211 = getelementptr inbounds nuw %struct.matrix, ptr %210, i32 0, i32 8
  %212 = load i64, ptr %211, align 8
  %213 = add nsw i64 %212, 16
  %214 = sub nsw i64 %213, 1
  %215 = sdiv i64 %214, 16
  store i64 %215, ptr %24, align 8
  br label %273

216:
  %217 = load ptr, ptr %22, align 8
  %218 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 0
  store ptr %217, ptr %218, align 8
  %219 = load ptr, ptr %16, align 8
  %220 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 1
  store ptr %219, ptr %220, align 8
  %221 = load ptr, ptr %10, align 8
  %222 = getelementptr inbounds ptr, ptr %221, i64 0
  %223 = load ptr, ptr %222, align 8
  %224 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 2
  store ptr %223, ptr %224, align 8
  %225 = load ptr, ptr %10, align 8
  %226 = getelementptr inbounds ptr, ptr %225, i64 1
  %227 = load ptr, ptr %226, align 8
  %228 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 3
  store ptr %227, ptr %228, align 8
  %229 = load ptr, ptr %10, align 8
  %230 = getelementptr inbounds ptr, ptr %229, i64 2
  %231 = load ptr, ptr %230, align 8
  %232 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 5
  store ptr %231, ptr %232, align 8
  %233 = load ptr, ptr %15, align 8
  %234 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 4
  store ptr %233, ptr %234, align 8
  %235 = load i64, ptr %11, align 8
  %236 = getelementptr inbounds nuw %struct.anon.0, ptr %23, i32 0, i32 6
  store i64 %235, ptr %236, align 8
  %237 = load ptr, ptr %7, align 8
  %238 = getelementptr inbounds nuw %struct.board, ptr %237, i32 0, i32 1
  %239 = getelementptr inbounds nuw %struct.line, ptr %238, i32 0, i32 0
  %240 = load i64, ptr %239, align 8
  %241 = call i64 @plan_attention(ptr noundef %23, i64 noundef %240) #13
  store i64 %241, ptr %24, align 8
  br label %273

242:
  %243 = load ptr, ptr %16, align 8
  %244 = getelementptr inbounds nuw %struct.anon.1, ptr %23, i32 0, i32 0
  store ptr %243, ptr %244, align 8
  %245 = load ptr, ptr %18, align 8
  %246 = getelementptr inbounds ptr, ptr %245, i64 0
  %247 = load ptr, ptr %246, align 8
  %248 = getelementptr inbounds nuw %struct.anon.1, ptr %23, i32 0, i32 1
  store ptr %247, ptr %248, align 8
  %249 = load ptr, ptr %18, align 8
  %250 = getelementptr inbounds ptr, ptr %249, i64 1
  %251 = load ptr, ptr %250, align 8
  %252 = getelementptr inbounds nuw %struct.anon.1, ptr %23, i32 0, i32 2
  store ptr %251, ptr %252, align 8
  %253 = load ptr, ptr %18, align 8
  %254 = getelementptr inbounds ptr, ptr %253, i64 2
  %255 = load ptr, ptr %254, align 8
  %256 = getelementptr inbounds nuw %struct.anon.1, ptr %23, i32 0, i32 3
  store ptr %255, ptr %256, align 8
  %257 = load i64, ptr %20, align 8
  %258 = getelementptr inbounds nuw %struct.anon.1, ptr %23, i32 0, i32 4
  store i64 %257, ptr %258, align 8
  %259 = load i64, ptr %11, align 8
  %260 = load i64, ptr %19, align 8
  %261 = mul nsw i64 %259, %260
  %262 = load i64, ptr %20, align 8
  %263 = sdiv i64 %261, %262
  store i64 %263, ptr %24, align 8
  br label %273

264:
  %265 = load i64, ptr %11, align 8
  store i64 %265, ptr %24, align 8
  br label %266

266:
  %267 = load ptr, ptr %15, align 8
  %268 = getelementptr inbounds nuw %struct.anon.2, ptr %23, i32 0, i32 0
  store ptr %267, ptr %268, align 8
  %269 = load ptr, ptr %16, align 8
  %270 = getelementptr inbounds nuw %struct.anon.2, ptr %23, i32 0, i32 1
  store ptr %269, ptr %270, align 8
  %271 = load i64, ptr %20, align 8
  %272 = getelementptr inbounds nuw %struct.anon.2, ptr %23, i32 0, i32 2
  store i64 %271, ptr %272, align 8
  br label %273

273:
  %274 = load ptr, ptr %7, align 8
  %275 = load i64, ptr %24, align 8
  %276 = load ptr, ptr %14, align 8
  %277 = getelementptr inbounds nuw %struct.step, ptr %276, i32 0, i32 0
  %278 = load i64, ptr %277, align 8
  call void @share(ptr noundef %274, ptr noundef %23, i64 noundef %275, i64 noundef %278) #13
  br label %279

279:
  %280 = load ptr, ptr %14, align 8
  %281 = getelementptr inbounds nuw %struct.step, ptr %280, i32 1
  store ptr %281, ptr %14, align 8
  br label %34, !llvm.loop !9

282:
  %283 = load ptr, ptr %7, align 8
  %284 = getelementptr inbounds nuw %struct.board, ptr %283, i32 0, i32 2
  %285 = getelementptr inbounds nuw %struct.line, ptr %284, i32 0, i32 0
  store i64 0, ptr %285, align 8
  ret void
}

define internal void @norm(ptr noundef %0, ptr noundef %1, i64 noundef %2, i64 noundef %3, i32 noundef %4, i32 noundef %5) #3 {
  %7 = alloca ptr, align 8
  %8 = alloca ptr, align 8
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i32, align 4
  %12 = alloca i32, align 4
  %13 = alloca i64, align 8
  %14 = alloca ptr, align 8
  %15 = alloca <8 x float>, align 32
  %16 = alloca <8 x float>, align 32
  %17 = alloca i64, align 8
  %18 = alloca i64, align 8
  %19 = alloca <8 x float>, align 32
  %20 = alloca float, align 4
  %21 = alloca float, align 4
  %22 = alloca i64, align 8
  store ptr %0, ptr %7, align 8
  store ptr %1, ptr %8, align 8
  store i64 %2, ptr %9, align 8
  store i64 %3, ptr %10, align 8
  store i32 %4, ptr %11, align 4
  store i32 %5, ptr %12, align 4
  store i64 0, ptr %13, align 8
  br label %23

23:
  %24 = load i64, ptr %13, align 8
  %25 = load i64, ptr %9, align 8
  %26 = load i64, ptr %10, align 8
  %27 = mul nsw i64 %25, %26
  %28 = icmp slt i64 %24, %27
  br i1 %28, label %29, label %116

29:
  %30 = load ptr, ptr %8, align 8
  %31 = load i64, ptr %13, align 8
  %32 = getelementptr inbounds float, ptr %30, i64 %31
  store ptr %32, ptr %14, align 8
  store <8 x float> zeroinitializer, ptr %15, align 32
  store <8 x float> zeroinitializer, ptr %16, align 32
  %33 = load i32, ptr %12, align 4
  %34 = icmp ne i32 %33, 0
  br i1 %34, label %35, label %58

35:
  store i64 0, ptr %17, align 8
  br label %36

36:
  %37 = load i64, ptr %17, align 8
  %38 = load i64, ptr %10, align 8
  %39 = icmp slt i64 %37, %38
  br i1 %39, label %40, label %50

40:
  %41 = load ptr, ptr %14, align 8
  %42 = load i64, ptr %17, align 8
  %43 = getelementptr inbounds float, ptr %41, i64 %42
  %44 = call <8 x float> @read(ptr noundef %43) #13
  %45 = load <8 x float>, ptr %15, align 32
  %46 = fadd <8 x float> %45, %44
  store <8 x float> %46, ptr %15, align 32
  br label %47

47:
  %48 = load i64, ptr %17, align 8
  %49 = add nsw i64 %48, 8
  store i64 %49, ptr %17, align 8
  br label %36, !llvm.loop !10

50:
  %51 = load <8 x float>, ptr %15, align 32
  %52 = call float @sum(<8 x float> noundef %51) #13
  %53 = load i64, ptr %10, align 8
  %54 = sitofp i64 %53 to float
  %55 = fdiv float %52, %54
  %56 = insertelement <8 x float> poison, float %55, i64 0
  %57 = shufflevector <8 x float> %56, <8 x float> poison, <8 x i32> zeroinitializer
  store <8 x float> %57, ptr %15, align 32
  br label %58

58:
  store i64 0, ptr %18, align 8
  br label %59

59:
  %60 = load i64, ptr %18, align 8
  %61 = load i64, ptr %10, align 8
  %62 = icmp slt i64 %60, %61
  br i1 %62, label %63, label %77

63:
  %64 = load ptr, ptr %14, align 8
  %65 = load i64, ptr %18, align 8
  %66 = getelementptr inbounds float, ptr %64, i64 %65
  %67 = call <8 x float> @read(ptr noundef %66) #13
  %68 = load <8 x float>, ptr %15, align 32
  %69 = fsub <8 x float> %67, %68
  store <8 x float> %69, ptr %19, align 32
  %70 = load <8 x float>, ptr %19, align 32
  %71 = load <8 x float>, ptr %19, align 32
  %72 = load <8 x float>, ptr %16, align 32
  %73 = call <8 x float> @fused(<8 x float> noundef %70, <8 x float> noundef %71, <8 x float> noundef %72) #13
  store <8 x float> %73, ptr %16, align 32
  br label %74

74:
  %75 = load i64, ptr %18, align 8
  %76 = add nsw i64 %75, 8
  store i64 %76, ptr %18, align 8
  br label %59, !llvm.loop !11

77:
  %78 = load <8 x float>, ptr %16, align 32
  %79 = call float @sum(<8 x float> noundef %78) #13
  %80 = load i64, ptr %10, align 8
  %81 = sitofp i64 %80 to float
  %82 = fdiv float %79, %81
  %83 = load float, ptr %11, align 4
  %84 = fadd float %82, %83
  store float %84, ptr %20, align 4
  %85 = load float, ptr %20, align 4
  %86 = call float @llvm.sqrt.f32(float %85)
  %87 = fdiv float 1.000000e+00, %86
  store float %87, ptr %21, align 4
  store i64 0, ptr %22, align 8
  br label %88

88:
  %89 = load i64, ptr %22, align 8
  %90 = load i64, ptr %10, align 8
  %91 = icmp slt i64 %89, %90
  br i1 %91, label %92, label %111

92:
  %93 = load ptr, ptr %7, align 8
  %94 = load i64, ptr %13, align 8
  %95 = getelementptr inbounds float, ptr %93, i64 %94
  %96 = load i64, ptr %22, align 8
  %97 = getelementptr inbounds float, ptr %95, i64 %96
  %98 = load ptr, ptr %14, align 8
  %99 = load i64, ptr %22, align 8
  %100 = getelementptr inbounds float, ptr %98, i64 %99
  %101 = call <8 x float> @read(ptr noundef %100) #13
  %102 = load <8 x float>, ptr %15, align 32
  %103 = fsub <8 x float> %101, %102
  %104 = load float, ptr %21, align 4
  %105 = insertelement <8 x float> poison, float %104, i64 0
  %106 = shufflevector <8 x float> %105, <8 x float> poison, <8 x i32> zeroinitializer
  %107 = fmul <8 x float> %103, %106
  call void @write(ptr noundef %97, <8 x float> noundef %107) #13
  br label %108

108:
  %109 = load i64, ptr %22, align 8
  %110 = add nsw i64 %109, 8
  store i64 %110, ptr %22, align 8
  br label %88, !llvm.loop !12

111:
  br label %112

112:
  %113 = load i64, ptr %10, align 8
  %114 = load i64, ptr %13, align 8
  %115 = add nsw i64 %114, %113
  store i64 %115, ptr %13, align 8
  br label %23, !llvm.loop !13

116:
  ret void
}

define internal void @add(ptr noundef %0, ptr noundef %1, ptr noundef %2, i64 noundef %3, i64 noundef %4, i64 noundef %5) #4 {
  %7 = alloca ptr, align 8
  %8 = alloca ptr, align 8
  %9 = alloca ptr, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  %15 = alloca <8 x float>, align 32
  store ptr %0, ptr %7, align 8
  store ptr %1, ptr %8, align 8
  store ptr %2, ptr %9, align 8
  store i64 %3, ptr %10, align 8
  store i64 %4, ptr %11, align 8
  store i64 %5, ptr %12, align 8
  store i64 0, ptr %13, align 8
  br label %16

16:
  %17 = load i64, ptr %13, align 8
  %18 = load i64, ptr %10, align 8
  %19 = icmp slt i64 %17, %18
  br i1 %19, label %20, label %58

20:
  store i64 0, ptr %14, align 8
  br label %21

21:
  %22 = load i64, ptr %14, align 8
  %23 = load i64, ptr %11, align 8
  %24 = icmp slt i64 %22, %23
  br i1 %24, label %25, label %54

25:
  %26 = load ptr, ptr %9, align 8
  %27 = load i64, ptr %13, align 8
  %28 = load i64, ptr %12, align 8
  %29 = mul nsw i64 %27, %28
  %30 = getelementptr inbounds float, ptr %26, i64 %29
  %31 = load i64, ptr %14, align 8
  %32 = getelementptr inbounds float, ptr %30, i64 %31
  %33 = call <8 x float> @read(ptr noundef %32) #13
  store <8 x float> %33, ptr %15, align 32
  %34 = load ptr, ptr %7, align 8
  %35 = load i64, ptr %13, align 8
  %36 = load i64, ptr %11, align 8
  %37 = mul nsw i64 %35, %36
  %38 = getelementptr inbounds float, ptr %34, i64 %37
  %39 = load i64, ptr %14, align 8
  %40 = getelementptr inbounds float, ptr %38, i64 %39
  %41 = load ptr, ptr %8, align 8
  %42 = load i64, ptr %13, align 8
  %43 = load i64, ptr %11, align 8
  %44 = mul nsw i64 %42, %43
  %45 = getelementptr inbounds float, ptr %41, i64 %44
  %46 = load i64, ptr %14, align 8
  %47 = getelementptr inbounds float, ptr %45, i64 %46
  %48 = call <8 x float> @read(ptr noundef %47) #13
  %49 = load <8 x float>, ptr %15, align 32
  %50 = fadd <8 x float> %48, %49
  call void @write(ptr noundef %40, <8 x float> noundef %50) #13
  br label %51

51:
  %52 = load i64, ptr %14, align 8
  %53 = add nsw i64 %52, 8
  store i64 %53, ptr %14, align 8
  br label %21, !llvm.loop !14

54:
  br label %55

55:
  %56 = load i64, ptr %13, align 8
  %57 = add nsw i64 %56, 1
  store i64 %57, ptr %13, align 8
  br label %16, !llvm.loop !15

58:
  ret void
}

define internal void @multiply(ptr noundef %0, ptr noundef %1, ptr noundef %2, i64 noundef %3, i64 noundef %4, i64 noundef %5) #4 {
  %7 = alloca ptr, align 8
  %8 = alloca ptr, align 8
  %9 = alloca ptr, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  %15 = alloca <8 x float>, align 32
  store ptr %0, ptr %7, align 8
  store ptr %1, ptr %8, align 8
  store ptr %2, ptr %9, align 8
  store i64 %3, ptr %10, align 8
  store i64 %4, ptr %11, align 8
  store i64 %5, ptr %12, align 8
  store i64 0, ptr %13, align 8
  br label %16

16:
  %17 = load i64, ptr %13, align 8
  %18 = load i64, ptr %10, align 8
  %19 = icmp slt i64 %17, %18
  br i1 %19, label %20, label %58

20:
  store i64 0, ptr %14, align 8
  br label %21

21:
  %22 = load i64, ptr %14, align 8
  %23 = load i64, ptr %11, align 8
  %24 = icmp slt i64 %22, %23
  br i1 %24, label %25, label %54

25:
  %26 = load ptr, ptr %9, align 8
  %27 = load i64, ptr %13, align 8
  %28 = load i64, ptr %12, align 8
  %29 = mul nsw i64 %27, %28
  %30 = getelementptr inbounds float, ptr %26, i64 %29
  %31 = load i64, ptr %14, align 8
  %32 = getelementptr inbounds float, ptr %30, i64 %31
  %33 = call <8 x float> @read(ptr noundef %32) #13
  store <8 x float> %33, ptr %15, align 32
  %34 = load ptr, ptr %7, align 8
  %35 = load i64, ptr %13, align 8
  %36 = load i64, ptr %11, align 8
  %37 = mul nsw i64 %35, %36
  %38 = getelementptr inbounds float, ptr %34, i64 %37
  %39 = load i64, ptr %14, align 8
  %40 = getelementptr inbounds float, ptr %38, i64 %39
  %41 = load ptr, ptr %8, align 8
  %42 = load i64, ptr %13, align 8
  %43 = load i64, ptr %11, align 8
  %44 = mul nsw i64 %42, %43
  %45 = getelementptr inbounds float, ptr %41, i64 %44
  %46 = load i64, ptr %14, align 8
  %47 = getelementptr inbounds float, ptr %45, i64 %46
  %48 = call <8 x float> @read(ptr noundef %47) #13
  %49 = load <8 x float>, ptr %15, align 32
  %50 = fmul <8 x float> %48, %49
  call void @write(ptr noundef %40, <8 x float> noundef %50) #13
  br label %51

51:
  %52 = load i64, ptr %14, align 8
  %53 = add nsw i64 %52, 8
  store i64 %53, ptr %14, align 8
  br label %21, !llvm.loop !16

54:
  br label %55

55:
  %56 = load i64, ptr %13, align 8
  %57 = add nsw i64 %56, 1
  store i64 %57, ptr %13, align 8
  br label %16, !llvm.loop !17

58:
  ret void
}

define internal void @rotate(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr noundef %3, i64 noundef %4, i64 noundef %5, i64 noundef %6) #4 {
  %8 = alloca ptr, align 8
  %9 = alloca ptr, align 8
  %10 = alloca ptr, align 8
  %11 = alloca ptr, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  %15 = alloca i64, align 8
  %16 = alloca i64, align 8
  %17 = alloca i64, align 8
  %18 = alloca i64, align 8
  %19 = alloca ptr, align 8
  %20 = alloca ptr, align 8
  %21 = alloca i64, align 8
  %22 = alloca ptr, align 8
  %23 = alloca ptr, align 8
  %24 = alloca i64, align 8
  %25 = alloca <8 x float>, align 32
  %26 = alloca <8 x float>, align 32
  %27 = alloca float, align 4
  %28 = alloca float, align 4
  store ptr %0, ptr %8, align 8
  store ptr %1, ptr %9, align 8
  store ptr %2, ptr %10, align 8
  store ptr %3, ptr %11, align 8
  store i64 %4, ptr %12, align 8
  store i64 %5, ptr %13, align 8
  store i64 %6, ptr %14, align 8
  %29 = load i64, ptr %14, align 8
  %30 = and i64 %29, 4294967295
  store i64 %30, ptr %15, align 8
  %31 = load i64, ptr %14, align 8
  %32 = ashr i64 %31, 32
  store i64 %32, ptr %16, align 8
  %33 = load i64, ptr %16, align 8
  %34 = sdiv i64 %33, 2
  store i64 %34, ptr %17, align 8
  store i64 0, ptr %18, align 8
  br label %35

35:
  %36 = load i64, ptr %18, align 8
  %37 = load i64, ptr %12, align 8
  %38 = icmp slt i64 %36, %37
  br i1 %38, label %39, label %213

39:
  %40 = load ptr, ptr %10, align 8
  %41 = load i64, ptr %18, align 8
  %42 = load i64, ptr %16, align 8
  %43 = mul nsw i64 %41, %42
  %44 = getelementptr inbounds float, ptr %40, i64 %43
  store ptr %44, ptr %19, align 8
  %45 = load ptr, ptr %11, align 8
  %46 = load i64, ptr %18, align 8
  %47 = load i64, ptr %16, align 8
  %48 = mul nsw i64 %46, %47
  %49 = getelementptr inbounds float, ptr %45, i64 %48
  store ptr %49, ptr %20, align 8
  %50 = load i64, ptr %18, align 8
  %51 = load i64, ptr %13, align 8
  %52 = mul nsw i64 %50, %51
  store i64 %52, ptr %21, align 8
  br label %53

53:
  %54 = load i64, ptr %21, align 8
  %55 = load i64, ptr %18, align 8
  %56 = add nsw i64 %55, 1
  %57 = load i64, ptr %13, align 8
  %58 = mul nsw i64 %56, %57
  %59 = icmp slt i64 %54, %58
  br i1 %59, label %60, label %209

60:
  %61 = load ptr, ptr %9, align 8
  %62 = load i64, ptr %21, align 8
  %63 = getelementptr inbounds float, ptr %61, i64 %62
  store ptr %63, ptr %22, align 8
  %64 = load ptr, ptr %22, align 8
  %65 = load i64, ptr %17, align 8
  %66 = getelementptr inbounds float, ptr %64, i64 %65
  store ptr %66, ptr %23, align 8
  store i64 0, ptr %24, align 8
  br label %67

67:
  %68 = load i64, ptr %24, align 8
  %69 = add nsw i64 %68, 8
  %70 = load i64, ptr %17, align 8
  %71 = icmp sle i64 %69, %70
  br i1 %71, label %72, label %125

72:
  %73 = load ptr, ptr %22, align 8
  %74 = load i64, ptr %24, align 8
  %75 = getelementptr inbounds float, ptr %73, i64 %74
  %76 = call <8 x float> @read(ptr noundef %75) #13
  store <8 x float> %76, ptr %25, align 32
  %77 = load ptr, ptr %23, align 8
  %78 = load i64, ptr %24, align 8
  %79 = getelementptr inbounds float, ptr %77, i64 %78
  %80 = call <8 x float> @read(ptr noundef %79) #13
  store <8 x float> %80, ptr %26, align 32
  %81 = load ptr, ptr %8, align 8
  %82 = load i64, ptr %21, align 8
  %83 = getelementptr inbounds float, ptr %81, i64 %82
  %84 = load i64, ptr %24, align 8
  %85 = getelementptr inbounds float, ptr %83, i64 %84
  %86 = load <8 x float>, ptr %25, align 32
  %87 = load ptr, ptr %19, align 8
  %88 = load i64, ptr %24, align 8
  %89 = getelementptr inbounds float, ptr %87, i64 %88
  %90 = call <8 x float> @read(ptr noundef %89) #13
  %91 = load <8 x float>, ptr %26, align 32
  %92 = fneg <8 x float> %91
  %93 = load ptr, ptr %20, align 8
  %94 = load i64, ptr %24, align 8
  %95 = getelementptr inbounds float, ptr %93, i64 %94
  %96 = call <8 x float> @read(ptr noundef %95) #13
  %97 = fmul <8 x float> %92, %96
  %98 = call <8 x float> @fused(<8 x float> noundef %86, <8 x float> noundef %90, <8 x float> noundef %97) #13
  call void @write(ptr noundef %85, <8 x float> noundef %98) #13
  %99 = load ptr, ptr %8, align 8
  %100 = load i64, ptr %21, align 8
  %101 = getelementptr inbounds float, ptr %99, i64 %100
  %102 = load i64, ptr %17, align 8
  %103 = getelementptr inbounds float, ptr %101, i64 %102
  %104 = load i64, ptr %24, align 8
  %105 = getelementptr inbounds float, ptr %103, i64 %104
  %106 = load <8 x float>, ptr %26, align 32
  %107 = load ptr, ptr %19, align 8
  %108 = load i64, ptr %17, align 8
  %109 = getelementptr inbounds float, ptr %107, i64 %108
  %110 = load i64, ptr %24, align 8
  %111 = getelementptr inbounds float, ptr %109, i64 %110
  %112 = call <8 x float> @read(ptr noundef %111) #13
  %113 = load <8 x float>, ptr %25, align 32
  %114 = load ptr, ptr %20, align 8
  %115 = load i64, ptr %17, align 8
  %116 = getelementptr inbounds float, ptr %114, i64 %115
  %117 = load i64, ptr %24, align 8
  %118 = getelementptr inbounds float, ptr %116, i64 %117
  %119 = call <8 x float> @read(ptr noundef %118) #13
  %120 = fmul <8 x float> %113, %119
  %121 = call <8 x float> @fused(<8 x float> noundef %106, <8 x float> noundef %112, <8 x float> noundef %120) #13
  call void @write(ptr noundef %105, <8 x float> noundef %121) #13
  br label %122

122:
  %123 = load i64, ptr %24, align 8
  %124 = add nsw i64 %123, 8
  store i64 %124, ptr %24, align 8
  br label %67, !llvm.loop !18

125:
  br label %126

126:
  %127 = load i64, ptr %24, align 8
  %128 = load i64, ptr %17, align 8
  %129 = icmp slt i64 %127, %128
  br i1 %129, label %130, label %183

130:
  %131 = load ptr, ptr %22, align 8
  %132 = load i64, ptr %24, align 8
  %133 = getelementptr inbounds float, ptr %131, i64 %132
  %134 = load float, ptr %133, align 4
  store float %134, ptr %27, align 4
  %135 = load ptr, ptr %23, align 8
  %136 = load i64, ptr %24, align 8
  %137 = getelementptr inbounds float, ptr %135, i64 %136
  %138 = load float, ptr %137, align 4
  store float %138, ptr %28, align 4
  %139 = load float, ptr %27, align 4
  %140 = load ptr, ptr %19, align 8
  %141 = load i64, ptr %24, align 8
  %142 = getelementptr inbounds float, ptr %140, i64 %141
  %143 = load float, ptr %142, align 4
  %144 = load float, ptr %28, align 4
  %145 = fneg float %144
  %146 = load ptr, ptr %20, align 8
  %147 = load i64, ptr %24, align 8
  %148 = getelementptr inbounds float, ptr %146, i64 %147
  %149 = load float, ptr %148, align 4
  %150 = fmul float %145, %149
  %151 = call float @llvm.fma.f32(float %139, float %143, float %150)
  %152 = load ptr, ptr %8, align 8
  %153 = load i64, ptr %21, align 8
  %154 = load i64, ptr %24, align 8
  %155 = add nsw i64 %153, %154
  %156 = getelementptr inbounds float, ptr %152, i64 %155
  store float %151, ptr %156, align 4
  %157 = load float, ptr %28, align 4
  %158 = load ptr, ptr %19, align 8
  %159 = load i64, ptr %17, align 8
  %160 = load i64, ptr %24, align 8
  %161 = add nsw i64 %159, %160
  %162 = getelementptr inbounds float, ptr %158, i64 %161
  %163 = load float, ptr %162, align 4
  %164 = load float, ptr %27, align 4
  %165 = load ptr, ptr %20, align 8
  %166 = load i64, ptr %17, align 8
  %167 = load i64, ptr %24, align 8
  %168 = add nsw i64 %166, %167
  %169 = getelementptr inbounds float, ptr %165, i64 %168
  %170 = load float, ptr %169, align 4
  %171 = fmul float %164, %170
  %172 = call float @llvm.fma.f32(float %157, float %163, float %171)
  %173 = load ptr, ptr %8, align 8
  %174 = load i64, ptr %21, align 8
  %175 = load i64, ptr %17, align 8
  %176 = add nsw i64 %174, %175
  %177 = load i64, ptr %24, align 8
  %178 = add nsw i64 %176, %177
  %179 = getelementptr inbounds float, ptr %173, i64 %178
  store float %172, ptr %179, align 4
  br label %180

180:
  %181 = load i64, ptr %24, align 8
  %182 = add nsw i64 %181, 1
  store i64 %182, ptr %24, align 8
  br label %126, !llvm.loop !19

183:
  %184 = load i64, ptr %16, align 8
  store i64 %184, ptr %24, align 8
  br label %185

185:
  %186 = load i64, ptr %24, align 8
  %187 = load i64, ptr %15, align 8
  %188 = icmp slt i64 %186, %187
  br i1 %188, label %189, label %204

189:
  %190 = load ptr, ptr %9, align 8
  %191 = load i64, ptr %21, align 8
  %192 = load i64, ptr %24, align 8
  %193 = add nsw i64 %191, %192
  %194 = getelementptr inbounds float, ptr %190, i64 %193
  %195 = load float, ptr %194, align 4
  %196 = load ptr, ptr %8, align 8
  %197 = load i64, ptr %21, align 8
  %198 = load i64, ptr %24, align 8
  %199 = add nsw i64 %197, %198
  %200 = getelementptr inbounds float, ptr %196, i64 %199
  store float %195, ptr %200, align 4
  br label %201

201:
  %202 = load i64, ptr %24, align 8
  %203 = add nsw i64 %202, 1
  store i64 %203, ptr %24, align 8
  br label %185, !llvm.loop !20

204:
  br label %205

205:
  %206 = load i64, ptr %15, align 8
  %207 = load i64, ptr %21, align 8
  %208 = add nsw i64 %207, %206
  store i64 %208, ptr %21, align 8
  br label %53, !llvm.loop !21

209:
  br label %210

210:
  %211 = load i64, ptr %18, align 8
  %212 = add nsw i64 %211, 1
  store i64 %212, ptr %18, align 8
  br label %35, !llvm.loop !22

213:
  ret void
}

define internal void @store(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr noundef %3, ptr noundef %4, ptr noundef %5, i64 noundef %6) #4 {
  %8 = alloca ptr, align 8
  %9 = alloca ptr, align 8
  %10 = alloca ptr, align 8
  %11 = alloca ptr, align 8
  %12 = alloca ptr, align 8
  %13 = alloca ptr, align 8
  %14 = alloca i64, align 8
  %15 = alloca i64, align 8
  %16 = alloca i64, align 8
  %17 = alloca i64, align 8
  %18 = alloca i64, align 8
  %19 = alloca i64, align 8
  %20 = alloca i64, align 8
  %21 = alloca i64, align 8
  %22 = alloca i64, align 8
  %23 = alloca i64, align 8
  %24 = alloca <8 x half>, align 16
  %25 = alloca <8 x half>, align 16
  %26 = alloca i32, align 4
  store ptr %0, ptr %8, align 8
  store ptr %1, ptr %9, align 8
  store ptr %2, ptr %10, align 8
  store ptr %3, ptr %11, align 8
  store ptr %4, ptr %12, align 8
  store ptr %5, ptr %13, align 8
  store i64 %6, ptr %14, align 8
  %27 = load ptr, ptr %8, align 8
  %28 = getelementptr inbounds nuw %struct.attention, ptr %27, i32 0, i32 1
  %29 = load i64, ptr %28, align 8
  store i64 %29, ptr %15, align 8
  %30 = load ptr, ptr %8, align 8
  %31 = getelementptr inbounds nuw %struct.attention, ptr %30, i32 0, i32 2
  %32 = load i64, ptr %31, align 8
  store i64 %32, ptr %16, align 8
  store i64 0, ptr %17, align 8
  br label %33

33:
  %34 = load i64, ptr %17, align 8
  %35 = load i64, ptr %14, align 8
  %36 = icmp slt i64 %34, %35
  br i1 %36, label %37, label %145

37:
  %38 = load ptr, ptr %13, align 8
  %39 = load ptr, ptr %12, align 8
  %40 = load i64, ptr %17, align 8
  %41 = getelementptr inbounds i32, ptr %39, i64 %40
  %42 = load i32, ptr %41, align 4
  %43 = load ptr, ptr %11, align 8
  %44 = load i64, ptr %17, align 8
  %45 = getelementptr inbounds i32, ptr %43, i64 %44
  %46 = load i32, ptr %45, align 4
  %47 = sdiv i32 %46, 32
  %48 = add nsw i32 %42, %47
  %49 = sext i32 %48 to i64
  %50 = getelementptr inbounds i32, ptr %38, i64 %49
  %51 = load i32, ptr %50, align 4
  %52 = sext i32 %51 to i64
  store i64 %52, ptr %18, align 8
  %53 = load ptr, ptr %11, align 8
  %54 = load i64, ptr %17, align 8
  %55 = getelementptr inbounds i32, ptr %53, i64 %54
  %56 = load i32, ptr %55, align 4
  %57 = srem i32 %56, 32
  %58 = sext i32 %57 to i64
  store i64 %58, ptr %19, align 8
  store i64 0, ptr %20, align 8
  br label %59

59:
  %60 = load i64, ptr %20, align 8
  %61 = load i64, ptr %15, align 8
  %62 = icmp slt i64 %60, %61
  br i1 %62, label %63, label %141

63:
  %64 = load i64, ptr %17, align 8
  %65 = load i64, ptr %15, align 8
  %66 = mul nsw i64 %64, %65
  %67 = load i64, ptr %20, align 8
  %68 = add nsw i64 %66, %67
  %69 = load i64, ptr %16, align 8
  %70 = mul nsw i64 %68, %69
  store i64 %70, ptr %21, align 8
  %71 = load i64, ptr %18, align 8
  %72 = load i64, ptr %15, align 8
  %73 = mul nsw i64 %71, %72
  %74 = load i64, ptr %20, align 8
  %75 = add nsw i64 %73, %74
  %76 = load i64, ptr %16, align 8
  %77 = mul nsw i64 %75, %76
  %78 = mul nsw i64 %77, 32
  store i64 %78, ptr %22, align 8
  store i64 0, ptr %23, align 8
  br label %79

79:
  %80 = load i64, ptr %23, align 8
  %81 = load i64, ptr %16, align 8
  %82 = icmp slt i64 %80, %81
  br i1 %82, label %83, label %137

83:
  %84 = load ptr, ptr %10, align 8
  %85 = load i64, ptr %21, align 8
  %86 = getelementptr inbounds float, ptr %84, i64 %85
  %87 = load i64, ptr %23, align 8
  %88 = getelementptr inbounds float, ptr %86, i64 %87
  %89 = call <8 x float> @read(ptr noundef %88) #13
  %90 = fptrunc <8 x float> %89 to <8 x half>
  store <8 x half> %90, ptr %24, align 16
  %91 = load <8 x half>, ptr %24, align 16
  %92 = load ptr, ptr %8, align 8
  %93 = getelementptr inbounds nuw %struct.attention, ptr %92, i32 0, i32 6
  %94 = load ptr, ptr %93, align 8
  %95 = load i64, ptr %22, align 8
  %96 = getelementptr inbounds half, ptr %94, i64 %95
  %97 = load i64, ptr %19, align 8
  %98 = load i64, ptr %16, align 8
  %99 = mul nsw i64 %97, %98
  %100 = getelementptr inbounds half, ptr %96, i64 %99
  %101 = load i64, ptr %23, align 8
  %102 = getelementptr inbounds half, ptr %100, i64 %101
  store <8 x half> %91, ptr %102, align 1
  %103 = load ptr, ptr %9, align 8
  %104 = load i64, ptr %21, align 8
  %105 = getelementptr inbounds float, ptr %103, i64 %104
  %106 = load i64, ptr %23, align 8
  %107 = getelementptr inbounds float, ptr %105, i64 %106
  %108 = call <8 x float> @read(ptr noundef %107) #13
  %109 = fptrunc <8 x float> %108 to <8 x half>
  store <8 x half> %109, ptr %25, align 16
  store i32 0, ptr %26, align 4
  br label %110

110:
  %111 = load i32, ptr %26, align 4
  %112 = icmp slt i32 %111, 8
  br i1 %112, label %113, label %133

113:
  %114 = load <8 x half>, ptr %25, align 16
  %115 = load i32, ptr %26, align 4
  %116 = extractelement <8 x half> %114, i32 %115
  %117 = load ptr, ptr %8, align 8
  %118 = getelementptr inbounds nuw %struct.attention, ptr %117, i32 0, i32 5
  %119 = load ptr, ptr %118, align 8
  %120 = load i64, ptr %22, align 8
  %121 = load i64, ptr %23, align 8
  %122 = load i32, ptr %26, align 4
  %123 = sext i32 %122 to i64
  %124 = add nsw i64 %121, %123
  %125 = mul nsw i64 %124, 32
  %126 = add nsw i64 %120, %125
  %127 = load i64, ptr %19, align 8
  %128 = add nsw i64 %126, %127
  %129 = getelementptr inbounds half, ptr %119, i64 %128
  store half %116, ptr %129, align 2
  br label %130

130:
  %131 = load i32, ptr %26, align 4
  %132 = add nsw i32 %131, 1
  store i32 %132, ptr %26, align 4
  br label %110, !llvm.loop !23

133:
  br label %134

134:
  %135 = load i64, ptr %23, align 8
  %136 = add nsw i64 %135, 8
  store i64 %136, ptr %23, align 8
  br label %79, !llvm.loop !25

137:
  br label %138

138:
  %139 = load i64, ptr %20, align 8
  %140 = add nsw i64 %139, 1
  store i64 %140, ptr %20, align 8
  br label %59, !llvm.loop !26

141:
  br label %142

142:
  %143 = load i64, ptr %17, align 8
  %144 = add nsw i64 %143, 1
  store i64 %144, ptr %17, align 8
  br label %33, !llvm.loop !27

145:
  ret void
}

define internal i64 @plan_attention(ptr noundef %0, i64 noundef %1) #0 {
  %3 = alloca ptr, align 8
  %4 = alloca i64, align 8
  %5 = alloca ptr, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  %8 = alloca i64, align 8
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  %15 = alloca i64, align 8
  %16 = alloca i64, align 8
  store ptr %0, ptr %3, align 8
  store i64 %1, ptr %4, align 8
  %17 = load ptr, ptr %3, align 8
  %18 = getelementptr inbounds nuw %struct.anon.0, ptr %17, i32 0, i32 0
  %19 = load ptr, ptr %18, align 8
  store ptr %19, ptr %5, align 8
  %20 = load ptr, ptr %3, align 8
  %21 = getelementptr inbounds nuw %struct.anon.0, ptr %20, i32 0, i32 6
  %22 = load i64, ptr %21, align 8
  store i64 %22, ptr %6, align 8
  %23 = load i64, ptr %4, align 8
  %24 = mul nsw i64 4, %23
  store i64 %24, ptr %7, align 8
  %25 = load ptr, ptr %5, align 8
  %26 = getelementptr inbounds nuw %struct.attention, ptr %25, i32 0, i32 0
  %27 = load i64, ptr %26, align 8
  %28 = load ptr, ptr %5, align 8
  %29 = getelementptr inbounds nuw %struct.attention, ptr %28, i32 0, i32 1
  %30 = load i64, ptr %29, align 8
  %31 = sdiv i64 %27, %30
  store i64 %31, ptr %8, align 8
  %32 = load i64, ptr %8, align 8
  %33 = sdiv i64 64, %32
  %34 = call i64 @larger(i64 noundef %33, i64 noundef 1) #13
  %35 = load i64, ptr %6, align 8
  %36 = call i64 @smaller(i64 noundef %35, i64 noundef 8) #13
  %37 = call i64 @smaller(i64 noundef %34, i64 noundef %36) #13
  store i64 %37, ptr %9, align 8
  store i64 0, ptr %10, align 8
  store i64 0, ptr %11, align 8
  br label %38

38:
  %39 = load i64, ptr %11, align 8
  %40 = load i64, ptr %6, align 8
  %41 = icmp slt i64 %39, %40
  br i1 %41, label %42, label %55

42:
  %43 = load i64, ptr %10, align 8
  %44 = load ptr, ptr %3, align 8
  %45 = getelementptr inbounds nuw %struct.anon.0, ptr %44, i32 0, i32 2
  %46 = load ptr, ptr %45, align 8
  %47 = load i64, ptr %11, align 8
  %48 = getelementptr inbounds i32, ptr %46, i64 %47
  %49 = load i32, ptr %48, align 4
  %50 = sext i32 %49 to i64
  %51 = call i64 @larger(i64 noundef %43, i64 noundef %50) #13
  store i64 %51, ptr %10, align 8
  br label %52

52:
  %53 = load i64, ptr %11, align 8
  %54 = add nsw i64 %53, 1
  store i64 %54, ptr %11, align 8
  br label %38, !llvm.loop !28

55:
  %56 = load i64, ptr %10, align 8
  %57 = sdiv i64 %56, 256
  %58 = add nsw i64 %57, 1
  store i64 %58, ptr %12, align 8
  %59 = load i64, ptr %6, align 8
  %60 = load i64, ptr %9, align 8
  %61 = add nsw i64 %59, %60
  %62 = sub nsw i64 %61, 1
  %63 = load i64, ptr %9, align 8
  %64 = sdiv i64 %62, %63
  %65 = load ptr, ptr %5, align 8
  %66 = getelementptr inbounds nuw %struct.attention, ptr %65, i32 0, i32 1
  %67 = load i64, ptr %66, align 8
  %68 = mul nsw i64 %64, %67
  store i64 %68, ptr %13, align 8
  store i64 1, ptr %14, align 8
  %69 = load i64, ptr %13, align 8
  %70 = load i64, ptr %9, align 8
  %71 = mul nsw i64 %69, %70
  %72 = load i64, ptr %8, align 8
  %73 = mul nsw i64 %71, %72
  %74 = load i64, ptr %12, align 8
  %75 = mul nsw i64 %73, %74
  store i64 %75, ptr %15, align 8
  %76 = load i64, ptr %13, align 8
  %77 = load i64, ptr %7, align 8
  %78 = call i64 @smaller(i64 noundef %77, i64 noundef 1024) #13
  %79 = icmp slt i64 %76, %78
  br i1 %79, label %80, label %90

80:
  %81 = load i64, ptr %15, align 8
  %82 = load ptr, ptr %5, align 8
  %83 = getelementptr inbounds nuw %struct.attention, ptr %82, i32 0, i32 2
  %84 = load i64, ptr %83, align 8
  %85 = add nsw i64 16, %84
  %86 = mul nsw i64 %81, %85
  %87 = icmp sle i64 %86, 262144
  br i1 %87, label %88, label %90

88:
  %89 = load i64, ptr %12, align 8
  store i64 %89, ptr %14, align 8
  br label %90

90:
  %91 = load i64, ptr %14, align 8
  %92 = icmp sgt i64 %91, 1
  br i1 %92, label %93, label %106

93:
  store i64 0, ptr %16, align 8
  br label %94

94:
  %95 = load i64, ptr %16, align 8
  %96 = load i64, ptr %13, align 8
  %97 = icmp slt i64 %95, %96
  br i1 %97, label %98, label %105

98:
  %99 = load i64, ptr %14, align 8
  %100 = load i64, ptr %16, align 8
  %101 = getelementptr inbounds [1024 x i64], ptr @parts_left, i64 0, i64 %100
  store i64 %99, ptr %101, align 8
  br label %102

102:
  %103 = load i64, ptr %16, align 8
  %104 = add nsw i64 %103, 1
  store i64 %104, ptr %16, align 8
  br label %94, !llvm.loop !29

105:
  br label %106

106:
  br label %107

107:
  %108 = load i64, ptr %14, align 8
  %109 = icmp eq i64 %108, 1
  br i1 %109, label %110, label %117

110:
  %111 = load i64, ptr %9, align 8
  %112 = icmp sgt i64 %111, 1
  br i1 %112, label %113, label %117

113:
  %114 = load i64, ptr %13, align 8
  %115 = load i64, ptr %7, align 8
  %116 = icmp slt i64 %114, %115
  br label %117

117:
  %118 = phi i1 [ false, %110 ], [ false, %107 ], [ %116, %113 ]
  br i1 %118, label %119, label %132

119:
  %120 = load i64, ptr %9, align 8
  %121 = sdiv i64 %120, 2
  store i64 %121, ptr %9, align 8
  %122 = load i64, ptr %6, align 8
  %123 = load i64, ptr %9, align 8
  %124 = add nsw i64 %122, %123
  %125 = sub nsw i64 %124, 1
  %126 = load i64, ptr %9, align 8
  %127 = sdiv i64 %125, %126
  %128 = load ptr, ptr %5, align 8
  %129 = getelementptr inbounds nuw %struct.attention, ptr %128, i32 0, i32 1
  %130 = load i64, ptr %129, align 8
  %131 = mul nsw i64 %127, %130
  store i64 %131, ptr %13, align 8
  br label %107, !llvm.loop !30

132:
  %133 = load i64, ptr %9, align 8
  %134 = load ptr, ptr %3, align 8
  %135 = getelementptr inbounds nuw %struct.anon.0, ptr %134, i32 0, i32 7
  store i64 %133, ptr %135, align 8
  %136 = load i64, ptr %12, align 8
  %137 = load ptr, ptr %3, align 8
  %138 = getelementptr inbounds nuw %struct.anon.0, ptr %137, i32 0, i32 8
  store i64 %136, ptr %138, align 8
  %139 = load i64, ptr %14, align 8
  %140 = load ptr, ptr %3, align 8
  %141 = getelementptr inbounds nuw %struct.anon.0, ptr %140, i32 0, i32 9
  store i64 %139, ptr %141, align 8
  %142 = load i64, ptr %13, align 8
  %143 = load i64, ptr %14, align 8
  %144 = mul nsw i64 %142, %143
  ret i64 %144
}

define internal void @share(ptr noundef %0, ptr noundef %1, i64 noundef %2, i64 noundef %3) #0 {
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  %7 = alloca i64, align 8
  %8 = alloca i64, align 8
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  store ptr %0, ptr %5, align 8
  store ptr %1, ptr %6, align 8
  store i64 %2, ptr %7, align 8
  store i64 %3, ptr %8, align 8
  %15 = load ptr, ptr %5, align 8
  %16 = getelementptr inbounds nuw %struct.board, ptr %15, i32 0, i32 1
  %17 = getelementptr inbounds nuw %struct.line, ptr %16, i32 0, i32 0
  %18 = load i64, ptr %17, align 8
  store i64 %18, ptr %9, align 8
  %19 = load ptr, ptr %5, align 8
  %20 = getelementptr inbounds nuw %struct.board, ptr %19, i32 0, i32 3
  %21 = load ptr, ptr %6, align 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %20, ptr align 8 %21, i64 128, i1 false)
  %22 = load i64, ptr %7, align 8
  %23 = load ptr, ptr %5, align 8
  %24 = getelementptr inbounds nuw %struct.board, ptr %23, i32 0, i32 4
  store i64 %22, ptr %24, align 8
  %25 = load i64, ptr %8, align 8
  %26 = load ptr, ptr %5, align 8
  %27 = getelementptr inbounds nuw %struct.board, ptr %26, i32 0, i32 5
  store i64 %25, ptr %27, align 8
  %28 = load ptr, ptr %5, align 8
  %29 = getelementptr inbounds nuw %struct.board, ptr %28, i32 0, i32 0
  %30 = getelementptr inbounds nuw %struct.line, ptr %29, i32 0, i32 0
  store i64 0, ptr %10, align 8
  %31 = load i64, ptr %10, align 8
  %32 = atomicrmw xchg ptr %30, i64 %31 seq_cst, align 8
  store i64 %32, ptr %11, align 8
  %33 = load i64, ptr %11, align 8
  store i64 0, ptr %12, align 8
  br label %34

34:
  %35 = load i64, ptr %12, align 8
  %36 = load i64, ptr %9, align 8
  %37 = icmp slt i64 %35, %36
  br i1 %37, label %38, label %50

38:
  %39 = load ptr, ptr %5, align 8
  %40 = getelementptr inbounds nuw %struct.board, ptr %39, i32 0, i32 7
  %41 = load i64, ptr %12, align 8
  %42 = getelementptr inbounds [0 x %struct.line], ptr %40, i64 0, i64 %41
  %43 = getelementptr inbounds nuw %struct.line, ptr %42, i32 0, i32 0
  store i64 0, ptr %13, align 8
  %44 = load i64, ptr %13, align 8
  %45 = atomicrmw xchg ptr %43, i64 %44 seq_cst, align 8
  store i64 %45, ptr %14, align 8
  %46 = load i64, ptr %14, align 8
  br label %47

47:
  %48 = load i64, ptr %12, align 8
  %49 = add nsw i64 %48, 1
  store i64 %49, ptr %12, align 8
  br label %34, !llvm.loop !31

50:
  %51 = load ptr, ptr %5, align 8
  %52 = call i64 @compute_parts(ptr noundef %51, i64 noundef 0) #13
  br label %53

53:
  %54 = load ptr, ptr %5, align 8
  %55 = getelementptr inbounds nuw %struct.board, ptr %54, i32 0, i32 0
  %56 = getelementptr inbounds nuw %struct.line, ptr %55, i32 0, i32 0
  %57 = call i64 @load(ptr noundef %56) #13
  %58 = load i64, ptr %9, align 8
  %59 = mul nsw i64 %58, 4
  %60 = icmp slt i64 %57, %59
  br i1 %60, label %61, label %62

61:
  call void @pause() #13
  br label %53, !llvm.loop !32

62:
  ret void
}

define internal void @matmul(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca ptr, align 8
  %8 = alloca i64, align 8
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i32, align 4
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %12 = load ptr, ptr %4, align 8
  %13 = getelementptr inbounds nuw %struct.anon, ptr %12, i32 0, i32 0
  %14 = load ptr, ptr %13, align 8
  store ptr %14, ptr %7, align 8
  %15 = load i64, ptr %5, align 8
  store i64 %15, ptr %8, align 8
  br label %16

16:
  %17 = load i64, ptr %8, align 8
  %18 = load i64, ptr %6, align 8
  %19 = icmp slt i64 %17, %18
  br i1 %19, label %20, label %71

20:
  store i64 0, ptr %9, align 8
  br label %21

21:
  %22 = load i64, ptr %9, align 8
  %23 = load ptr, ptr %4, align 8
  %24 = getelementptr inbounds nuw %struct.anon, ptr %23, i32 0, i32 5
  %25 = load i64, ptr %24, align 8
  %26 = icmp slt i64 %22, %25
  br i1 %26, label %27, label %67

27:
  %28 = load ptr, ptr %4, align 8
  %29 = getelementptr inbounds nuw %struct.anon, ptr %28, i32 0, i32 5
  %30 = load i64, ptr %29, align 8
  %31 = load i64, ptr %9, align 8
  %32 = sub nsw i64 %30, %31
  %33 = call i64 @smaller(i64 noundef %32, i64 noundef 4) #13
  store i64 %33, ptr %10, align 8
  %34 = load i64, ptr %10, align 8
  %35 = icmp sgt i64 %34, 2
  br i1 %35, label %48, label %36

36:
  %37 = load i64, ptr %10, align 8
  %38 = icmp sgt i64 %37, 1
  br i1 %38, label %39, label %46

39:
  %40 = load i64, ptr %10, align 8
  %41 = load ptr, ptr %7, align 8
  %42 = getelementptr inbounds nuw %struct.matrix, ptr %41, i32 0, i32 3
  %43 = load i64, ptr %42, align 8
  %44 = mul nsw i64 %40, %43
  %45 = icmp sgt i64 %44, 4096
  br label %46

46:
  %47 = phi i1 [ false, %36 ], [ %45, %39 ]
  br label %48

48:
  %49 = phi i1 [ true, %27 ], [ %47, %46 ]
  %50 = zext i1 %49 to i32
  store i32 %50, ptr %11, align 4
  %51 = load ptr, ptr %7, align 8
  %52 = getelementptr inbounds nuw %struct.matrix, ptr %51, i32 0, i32 9
  %53 = load i64, ptr %52, align 8
  %54 = getelementptr inbounds [2 x [2 x [5 x ptr]]], ptr @TILES, i64 0, i64 %53
  %55 = load i32, ptr %11, align 4
  %56 = sext i32 %55 to i64
  %57 = getelementptr inbounds [2 x [5 x ptr]], ptr %54, i64 0, i64 %56
  %58 = load i64, ptr %10, align 8
  %59 = getelementptr inbounds [5 x ptr], ptr %57, i64 0, i64 %58
  %60 = load ptr, ptr %59, align 8
  %61 = load ptr, ptr %4, align 8
  %62 = load i64, ptr %8, align 8
  %63 = load i64, ptr %9, align 8
  call void %60(ptr noundef %61, i64 noundef %62, i64 noundef %63) #13
  br label %64

64:
  %65 = load i64, ptr %9, align 8
  %66 = add nsw i64 %65, 4
  store i64 %66, ptr %9, align 8
  br label %21, !llvm.loop !33

67:
  br label %68

68:
  %69 = load i64, ptr %8, align 8
  %70 = add nsw i64 %69, 1
  store i64 %70, ptr %8, align 8
  br label %16, !llvm.loop !34

71:
  ret void
}

define internal void @attend(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca ptr, align 8
  %8 = alloca i64, align 8
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca i64, align 8
  %14 = alloca i64, align 8
  %15 = alloca i64, align 8
  %16 = alloca i64, align 8
  %17 = alloca ptr, align 8
  %18 = alloca i64, align 8
  %19 = alloca i64, align 8
  %20 = alloca i64, align 8
  %21 = alloca i64, align 8
  %22 = alloca i64, align 8
  %23 = alloca i64, align 8
  %24 = alloca i64, align 8
  %25 = alloca ptr, align 8
  %26 = alloca i64, align 8
  %27 = alloca ptr, align 8
  %28 = alloca i64, align 8
  %29 = alloca i64, align 8
  %30 = alloca ptr, align 8
  %31 = alloca i64, align 8
  %32 = alloca i64, align 8
  %33 = alloca i64, align 8
  %34 = alloca i64, align 8
  %35 = alloca i64, align 8
  %36 = alloca i64, align 8
  %37 = alloca ptr, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %38 = load ptr, ptr %4, align 8
  %39 = getelementptr inbounds nuw %struct.anon.0, ptr %38, i32 0, i32 0
  %40 = load ptr, ptr %39, align 8
  store ptr %40, ptr %7, align 8
  %41 = load ptr, ptr %4, align 8
  %42 = getelementptr inbounds nuw %struct.anon.0, ptr %41, i32 0, i32 7
  %43 = load i64, ptr %42, align 8
  store i64 %43, ptr %8, align 8
  %44 = load ptr, ptr %4, align 8
  %45 = getelementptr inbounds nuw %struct.anon.0, ptr %44, i32 0, i32 6
  %46 = load i64, ptr %45, align 8
  store i64 %46, ptr %9, align 8
  %47 = load ptr, ptr %4, align 8
  %48 = getelementptr inbounds nuw %struct.anon.0, ptr %47, i32 0, i32 8
  %49 = load i64, ptr %48, align 8
  store i64 %49, ptr %10, align 8
  %50 = load ptr, ptr %4, align 8
  %51 = getelementptr inbounds nuw %struct.anon.0, ptr %50, i32 0, i32 9
  %52 = load i64, ptr %51, align 8
  store i64 %52, ptr %11, align 8
  %53 = load i64, ptr %9, align 8
  %54 = load i64, ptr %8, align 8
  %55 = add nsw i64 %53, %54
  %56 = sub nsw i64 %55, 1
  %57 = load i64, ptr %8, align 8
  %58 = sdiv i64 %56, %57
  store i64 %58, ptr %12, align 8
  %59 = load ptr, ptr %7, align 8
  %60 = getelementptr inbounds nuw %struct.attention, ptr %59, i32 0, i32 2
  %61 = load i64, ptr %60, align 8
  store i64 %61, ptr %13, align 8
  %62 = load ptr, ptr %7, align 8
  %63 = getelementptr inbounds nuw %struct.attention, ptr %62, i32 0, i32 0
  %64 = load i64, ptr %63, align 8
  %65 = load ptr, ptr %7, align 8
  %66 = getelementptr inbounds nuw %struct.attention, ptr %65, i32 0, i32 1
  %67 = load i64, ptr %66, align 8
  %68 = sdiv i64 %64, %67
  store i64 %68, ptr %14, align 8
  %69 = load i64, ptr %13, align 8
  %70 = add nsw i64 16, %69
  store i64 %70, ptr %15, align 8
  %71 = load i64, ptr %15, align 8
  %72 = load i64, ptr %11, align 8
  %73 = icmp sgt i64 %72, 1
  br i1 %73, label %74, label %76

74:
  %75 = load i64, ptr %11, align 8
  br label %77

76:
  br label %77

77:
  %78 = phi i64 [ %75, %74 ], [ 2, %76 ]
  %79 = mul nsw i64 %71, %78
  store i64 %79, ptr %16, align 8
  %80 = load i64, ptr %11, align 8
  %81 = icmp sgt i64 %80, 1
  br i1 %81, label %82, label %83

82:
  br label %89

83:
  %84 = load i64, ptr %8, align 8
  %85 = load i64, ptr %14, align 8
  %86 = mul nsw i64 %84, %85
  %87 = load i64, ptr %16, align 8
  %88 = mul nsw i64 %86, %87
  br label %89

89:
  %90 = phi i64 [ 1, %82 ], [ %88, %83 ]
  %91 = call ptr @llvm.stacksave.p0()
  store ptr %91, ptr %17, align 8
  %92 = alloca float, i64 %90, align 16
  store i64 %90, ptr %18, align 8
  %93 = load i64, ptr %5, align 8
  store i64 %93, ptr %19, align 8
  br label %94

94:
  %95 = load i64, ptr %19, align 8
  %96 = load i64, ptr %6, align 8
  %97 = icmp slt i64 %95, %96
  br i1 %97, label %98, label %292

98:
  %99 = load i64, ptr %19, align 8
  %100 = load i64, ptr %11, align 8
  %101 = sdiv i64 %99, %100
  store i64 %101, ptr %20, align 8
  %102 = load i64, ptr %20, align 8
  %103 = load i64, ptr %12, align 8
  %104 = sdiv i64 %102, %103
  store i64 %104, ptr %21, align 8
  %105 = load i64, ptr %20, align 8
  %106 = load i64, ptr %12, align 8
  %107 = srem i64 %105, %106
  %108 = load i64, ptr %8, align 8
  %109 = mul nsw i64 %107, %108
  store i64 %109, ptr %22, align 8
  %110 = load i64, ptr %22, align 8
  %111 = load i64, ptr %8, align 8
  %112 = add nsw i64 %110, %111
  %113 = load i64, ptr %9, align 8
  %114 = call i64 @smaller(i64 noundef %112, i64 noundef %113) #13
  store i64 %114, ptr %23, align 8
  %115 = load i64, ptr %23, align 8
  %116 = load i64, ptr %22, align 8
  %117 = sub nsw i64 %115, %116
  %118 = load i64, ptr %14, align 8
  %119 = mul nsw i64 %117, %118
  store i64 %119, ptr %24, align 8
  %120 = load i64, ptr %11, align 8
  %121 = icmp sgt i64 %120, 1
  br i1 %121, label %122, label %131

122:
  %123 = load i64, ptr %20, align 8
  %124 = load i64, ptr %8, align 8
  %125 = mul nsw i64 %123, %124
  %126 = load i64, ptr %14, align 8
  %127 = mul nsw i64 %125, %126
  %128 = load i64, ptr %16, align 8
  %129 = mul nsw i64 %127, %128
  %130 = getelementptr inbounds float, ptr @partials, i64 %129
  br label %132

131:
  br label %132

132:
  %133 = phi ptr [ %130, %122 ], [ %92, %131 ]
  store ptr %133, ptr %25, align 8
  %134 = load i64, ptr %19, align 8
  %135 = load i64, ptr %11, align 8
  %136 = srem i64 %134, %135
  store i64 %136, ptr %26, align 8
  br label %137

137:
  %138 = load ptr, ptr %25, align 8
  %139 = load i64, ptr %11, align 8
  %140 = icmp sgt i64 %139, 1
  br i1 %140, label %141, label %143

141:
  %142 = load i64, ptr %26, align 8
  br label %148

143:
  %144 = load i64, ptr %26, align 8
  %145 = icmp sgt i64 %144, 0
  %146 = zext i1 %145 to i32
  %147 = sext i32 %146 to i64
  br label %148

148:
  %149 = phi i64 [ %142, %141 ], [ %147, %143 ]
  %150 = load i64, ptr %15, align 8
  %151 = mul nsw i64 %149, %150
  %152 = getelementptr inbounds float, ptr %138, i64 %151
  store ptr %152, ptr %27, align 8
  %153 = load i64, ptr %22, align 8
  store i64 %153, ptr %28, align 8
  br label %154

154:
  %155 = load i64, ptr %28, align 8
  %156 = load i64, ptr %23, align 8
  %157 = icmp slt i64 %155, %156
  br i1 %157, label %158, label %181

158:
  %159 = load ptr, ptr %4, align 8
  %160 = load i64, ptr %28, align 8
  %161 = load i64, ptr %23, align 8
  %162 = call i64 @end_of_request(ptr noundef %159, i64 noundef %160, i64 noundef %161) #13
  store i64 %162, ptr %29, align 8
  %163 = load ptr, ptr %27, align 8
  %164 = load i64, ptr %28, align 8
  %165 = load i64, ptr %22, align 8
  %166 = sub nsw i64 %164, %165
  %167 = load i64, ptr %14, align 8
  %168 = mul nsw i64 %166, %167
  %169 = load i64, ptr %16, align 8
  %170 = mul nsw i64 %168, %169
  %171 = getelementptr inbounds float, ptr %163, i64 %170
  store ptr %171, ptr %30, align 8
  %172 = load ptr, ptr %4, align 8
  %173 = load i64, ptr %28, align 8
  %174 = load i64, ptr %29, align 8
  %175 = load i64, ptr %21, align 8
  %176 = load i64, ptr %26, align 8
  %177 = load ptr, ptr %30, align 8
  %178 = load i64, ptr %16, align 8
  call void @attend_part(ptr noundef %172, i64 noundef %173, i64 noundef %174, i64 noundef %175, i64 noundef %176, ptr noundef %177, i64 noundef %178) #13
  br label %179

179:
  %180 = load i64, ptr %29, align 8
  store i64 %180, ptr %28, align 8
  br label %154, !llvm.loop !35

181:
  %182 = load i64, ptr %11, align 8
  %183 = icmp eq i64 %182, 1
  br i1 %183, label %184, label %208

184:
  %185 = load i64, ptr %26, align 8
  %186 = icmp ne i64 %185, 0
  br i1 %186, label %187, label %208

187:
  store i64 0, ptr %31, align 8
  br label %188

188:
  %189 = load i64, ptr %31, align 8
  %190 = load i64, ptr %24, align 8
  %191 = icmp slt i64 %189, %190
  br i1 %191, label %192, label %207

192:
  %193 = load ptr, ptr %25, align 8
  %194 = load i64, ptr %31, align 8
  %195 = load i64, ptr %16, align 8
  %196 = mul nsw i64 %194, %195
  %197 = getelementptr inbounds float, ptr %193, i64 %196
  %198 = load ptr, ptr %27, align 8
  %199 = load i64, ptr %31, align 8
  %200 = load i64, ptr %16, align 8
  %201 = mul nsw i64 %199, %200
  %202 = getelementptr inbounds float, ptr %198, i64 %201
  %203 = load i64, ptr %13, align 8
  call void @join(ptr noundef %197, ptr noundef %202, i64 noundef %203) #13
  br label %204

204:
  %205 = load i64, ptr %31, align 8
  %206 = add nsw i64 %205, 1
  store i64 %206, ptr %31, align 8
  br label %188, !llvm.loop !36

207:
  br label %208

208:
  br label %209

209:
  %210 = load i64, ptr %11, align 8
  %211 = icmp eq i64 %210, 1
  br i1 %211, label %212, label %217

212:
  %213 = load i64, ptr %26, align 8
  %214 = add nsw i64 %213, 1
  store i64 %214, ptr %26, align 8
  %215 = load i64, ptr %10, align 8
  %216 = icmp slt i64 %214, %215
  br label %217

217:
  %218 = phi i1 [ false, %209 ], [ %216, %212 ]
  br i1 %218, label %137, label %219, !llvm.loop !37

219:
  %220 = load i64, ptr %11, align 8
  %221 = icmp sgt i64 %220, 1
  br i1 %221, label %222, label %231

222:
  %223 = load i64, ptr %20, align 8
  %224 = getelementptr inbounds [1024 x i64], ptr @parts_left, i64 0, i64 %223
  store i64 1, ptr %32, align 8
  %225 = load i64, ptr %32, align 8
  %226 = atomicrmw sub ptr %224, i64 %225 seq_cst, align 8
  %227 = sub i64 %226, %225
  store i64 %227, ptr %33, align 8
  %228 = load i64, ptr %33, align 8
  %229 = icmp ne i64 %228, 0
  br i1 %229, label %230, label %231

230:
  br label %289

231:
  store i64 0, ptr %34, align 8
  br label %232

232:
  %233 = load i64, ptr %34, align 8
  %234 = load i64, ptr %24, align 8
  %235 = icmp slt i64 %233, %234
  br i1 %235, label %236, label %288

236:
  %237 = load i64, ptr %22, align 8
  %238 = load i64, ptr %34, align 8
  %239 = load i64, ptr %14, align 8
  %240 = sdiv i64 %238, %239
  %241 = add nsw i64 %237, %240
  store i64 %241, ptr %35, align 8
  %242 = load i64, ptr %21, align 8
  %243 = load i64, ptr %14, align 8
  %244 = mul nsw i64 %242, %243
  %245 = load i64, ptr %34, align 8
  %246 = load i64, ptr %14, align 8
  %247 = srem i64 %245, %246
  %248 = add nsw i64 %244, %247
  store i64 %248, ptr %36, align 8
  %249 = load ptr, ptr %25, align 8
  %250 = load i64, ptr %34, align 8
  %251 = load i64, ptr %16, align 8
  %252 = mul nsw i64 %250, %251
  %253 = getelementptr inbounds float, ptr %249, i64 %252
  store ptr %253, ptr %37, align 8
  store i64 1, ptr %26, align 8
  br label %254

254:
  %255 = load i64, ptr %26, align 8
  %256 = load i64, ptr %11, align 8
  %257 = icmp slt i64 %255, %256
  br i1 %257, label %258, label %269

258:
  %259 = load ptr, ptr %37, align 8
  %260 = load ptr, ptr %37, align 8
  %261 = load i64, ptr %26, align 8
  %262 = load i64, ptr %15, align 8
  %263 = mul nsw i64 %261, %262
  %264 = getelementptr inbounds float, ptr %260, i64 %263
  %265 = load i64, ptr %13, align 8
  call void @join(ptr noundef %259, ptr noundef %264, i64 noundef %265) #13
  br label %266

266:
  %267 = load i64, ptr %26, align 8
  %268 = add nsw i64 %267, 1
  store i64 %268, ptr %26, align 8
  br label %254, !llvm.loop !38

269:
  %270 = load ptr, ptr %4, align 8
  %271 = getelementptr inbounds nuw %struct.anon.0, ptr %270, i32 0, i32 4
  %272 = load ptr, ptr %271, align 8
  %273 = load i64, ptr %35, align 8
  %274 = load ptr, ptr %7, align 8
  %275 = getelementptr inbounds nuw %struct.attention, ptr %274, i32 0, i32 0
  %276 = load i64, ptr %275, align 8
  %277 = mul nsw i64 %273, %276
  %278 = load i64, ptr %36, align 8
  %279 = add nsw i64 %277, %278
  %280 = load i64, ptr %13, align 8
  %281 = mul nsw i64 %279, %280
  %282 = getelementptr inbounds float, ptr %272, i64 %281
  %283 = load ptr, ptr %37, align 8
  %284 = load i64, ptr %13, align 8
  call void @finish(ptr noundef %282, ptr noundef %283, i64 noundef %284) #13
  br label %285

285:
  %286 = load i64, ptr %34, align 8
  %287 = add nsw i64 %286, 1
  store i64 %287, ptr %34, align 8
  br label %232, !llvm.loop !39

288:
  br label %289

289:
  %290 = load i64, ptr %19, align 8
  %291 = add nsw i64 %290, 1
  store i64 %291, ptr %19, align 8
  br label %94, !llvm.loop !40

292:
  %293 = load ptr, ptr %17, align 8
  call void @llvm.stackrestore.p0(ptr %293)
  ret void
}

define internal void @round4(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @round_groups(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 4) #13
  ret void
}

define internal void @round8(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @round_groups(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 8) #13
  ret void
}

define internal void @swish_all(ptr noundef %0, i64 noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %8 = load i64, ptr %5, align 8
  store i64 %8, ptr %7, align 8
  br label %9

9:
  %10 = load i64, ptr %7, align 8
  %11 = load i64, ptr %6, align 8
  %12 = icmp slt i64 %10, %11
  br i1 %12, label %13, label %31

13:
  %14 = load ptr, ptr %4, align 8
  %15 = getelementptr inbounds nuw %struct.anon.2, ptr %14, i32 0, i32 0
  %16 = load ptr, ptr %15, align 8
  %17 = load i64, ptr %7, align 8
  %18 = mul nsw i64 %17, 8
  %19 = getelementptr inbounds float, ptr %16, i64 %18
  %20 = load ptr, ptr %4, align 8
  %21 = getelementptr inbounds nuw %struct.anon.2, ptr %20, i32 0, i32 1
  %22 = load ptr, ptr %21, align 8
  %23 = load i64, ptr %7, align 8
  %24 = mul nsw i64 %23, 8
  %25 = getelementptr inbounds float, ptr %22, i64 %24
  %26 = call <8 x float> @read(ptr noundef %25) #13
  %27 = call <8 x float> @swish(<8 x float> noundef %26) #13
  call void @write(ptr noundef %19, <8 x float> noundef %27) #13
  br label %28

28:
  %29 = load i64, ptr %7, align 8
  %30 = add nsw i64 %29, 1
  store i64 %30, ptr %7, align 8
  br label %9, !llvm.loop !41

31:
  ret void
}

define internal void @gelu_all(ptr noundef %0, i64 noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %8 = load i64, ptr %5, align 8
  store i64 %8, ptr %7, align 8
  br label %9

9:
  %10 = load i64, ptr %7, align 8
  %11 = load i64, ptr %6, align 8
  %12 = icmp slt i64 %10, %11
  br i1 %12, label %13, label %31

13:
  %14 = load ptr, ptr %4, align 8
  %15 = getelementptr inbounds nuw %struct.anon.2, ptr %14, i32 0, i32 0
  %16 = load ptr, ptr %15, align 8
  %17 = load i64, ptr %7, align 8
  %18 = mul nsw i64 %17, 8
  %19 = getelementptr inbounds float, ptr %16, i64 %18
  %20 = load ptr, ptr %4, align 8
  %21 = getelementptr inbounds nuw %struct.anon.2, ptr %20, i32 0, i32 1
  %22 = load ptr, ptr %21, align 8
  %23 = load i64, ptr %7, align 8
  %24 = mul nsw i64 %23, 8
  %25 = getelementptr inbounds float, ptr %22, i64 %24
  %26 = call <8 x float> @read(ptr noundef %25) #13
  %27 = call <8 x float> @gelu(<8 x float> noundef %26) #13
  call void @write(ptr noundef %19, <8 x float> noundef %27) #13
  br label %28

28:
  %29 = load i64, ptr %7, align 8
  %30 = add nsw i64 %29, 1
  store i64 %30, ptr %7, align 8
  br label %9, !llvm.loop !42

31:
  ret void
}

define internal void @erf_gelu_all(ptr noundef %0, i64 noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %8 = load i64, ptr %5, align 8
  store i64 %8, ptr %7, align 8
  br label %9

9:
  %10 = load i64, ptr %7, align 8
  %11 = load i64, ptr %6, align 8
  %12 = icmp slt i64 %10, %11
  br i1 %12, label %13, label %31

13:
  %14 = load ptr, ptr %4, align 8
  %15 = getelementptr inbounds nuw %struct.anon.2, ptr %14, i32 0, i32 0
  %16 = load ptr, ptr %15, align 8
  %17 = load i64, ptr %7, align 8
  %18 = mul nsw i64 %17, 8
  %19 = getelementptr inbounds float, ptr %16, i64 %18
  %20 = load ptr, ptr %4, align 8
  %21 = getelementptr inbounds nuw %struct.anon.2, ptr %20, i32 0, i32 1
  %22 = load ptr, ptr %21, align 8
  %23 = load i64, ptr %7, align 8
  %24 = mul nsw i64 %23, 8
  %25 = getelementptr inbounds float, ptr %22, i64 %24
  %26 = call <8 x float> @read(ptr noundef %25) #13
  %27 = call <8 x float> @erf_gelu(<8 x float> noundef %26) #13
  call void @write(ptr noundef %19, <8 x float> noundef %27) #13
  br label %28

28:
  %29 = load i64, ptr %7, align 8
  %30 = add nsw i64 %29, 1
  store i64 %30, ptr %7, align 8
  br label %9, !llvm.loop !43

31:
  ret void
}

define internal void @relu_all(ptr noundef %0, i64 noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %8 = load i64, ptr %5, align 8
  store i64 %8, ptr %7, align 8
  br label %9

9:
  %10 = load i64, ptr %7, align 8
  %11 = load i64, ptr %6, align 8
  %12 = icmp slt i64 %10, %11
  br i1 %12, label %13, label %31

13:
  %14 = load ptr, ptr %4, align 8
  %15 = getelementptr inbounds nuw %struct.anon.2, ptr %14, i32 0, i32 0
  %16 = load ptr, ptr %15, align 8
  %17 = load i64, ptr %7, align 8
  %18 = mul nsw i64 %17, 8
  %19 = getelementptr inbounds float, ptr %16, i64 %18
  %20 = load ptr, ptr %4, align 8
  %21 = getelementptr inbounds nuw %struct.anon.2, ptr %20, i32 0, i32 1
  %22 = load ptr, ptr %21, align 8
  %23 = load i64, ptr %7, align 8
  %24 = mul nsw i64 %23, 8
  %25 = getelementptr inbounds float, ptr %22, i64 %24
  %26 = call <8 x float> @read(ptr noundef %25) #13
  %27 = call <8 x float> @relu(<8 x float> noundef %26) #13
  call void @write(ptr noundef %19, <8 x float> noundef %27) #13
  br label %28

28:
  %29 = load i64, ptr %7, align 8
  %30 = add nsw i64 %29, 1
  store i64 %30, ptr %7, align 8
  br label %9, !llvm.loop !44

31:
  ret void
}

define internal void @square_all(ptr noundef %0, i64 noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %8 = load i64, ptr %5, align 8
  store i64 %8, ptr %7, align 8
  br label %9

9:
  %10 = load i64, ptr %7, align 8
  %11 = load i64, ptr %6, align 8
  %12 = icmp slt i64 %10, %11
  br i1 %12, label %13, label %31

13:
  %14 = load ptr, ptr %4, align 8
  %15 = getelementptr inbounds nuw %struct.anon.2, ptr %14, i32 0, i32 0
  %16 = load ptr, ptr %15, align 8
  %17 = load i64, ptr %7, align 8
  %18 = mul nsw i64 %17, 8
  %19 = getelementptr inbounds float, ptr %16, i64 %18
  %20 = load ptr, ptr %4, align 8
  %21 = getelementptr inbounds nuw %struct.anon.2, ptr %20, i32 0, i32 1
  %22 = load ptr, ptr %21, align 8
  %23 = load i64, ptr %7, align 8
  %24 = mul nsw i64 %23, 8
  %25 = getelementptr inbounds float, ptr %22, i64 %24
  %26 = call <8 x float> @read(ptr noundef %25) #13
  %27 = call <8 x float> @square(<8 x float> noundef %26) #13
  call void @write(ptr noundef %19, <8 x float> noundef %27) #13
  br label %28

28:
  %29 = load i64, ptr %7, align 8
  %30 = add nsw i64 %29, 1
  store i64 %30, ptr %7, align 8
  br label %9, !llvm.loop !45

31:
  ret void
}

define internal void @log_sum_exp(ptr noundef %0, i64 noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  %8 = alloca i64, align 8
  %9 = alloca ptr, align 8
  %10 = alloca <8 x float>, align 32
  %11 = alloca <8 x float>, align 32
  %12 = alloca i64, align 8
  %13 = alloca <8 x float>, align 32
  %14 = alloca float, align 4
  %15 = alloca i64, align 8
  %16 = alloca <8 x float>, align 32
  %17 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %18 = load ptr, ptr %4, align 8
  %19 = getelementptr inbounds nuw %struct.anon.2, ptr %18, i32 0, i32 2
  %20 = load i64, ptr %19, align 8
  store i64 %20, ptr %7, align 8
  %21 = load i64, ptr %5, align 8
  store i64 %21, ptr %8, align 8
  br label %22

22:
  %23 = load i64, ptr %8, align 8
  %24 = load i64, ptr %6, align 8
  %25 = icmp slt i64 %23, %24
  br i1 %25, label %26, label %106

26:
  %27 = load ptr, ptr %4, align 8
  %28 = getelementptr inbounds nuw %struct.anon.2, ptr %27, i32 0, i32 1
  %29 = load ptr, ptr %28, align 8
  %30 = load i64, ptr %8, align 8
  %31 = load i64, ptr %7, align 8
  %32 = mul nsw i64 %30, %31
  %33 = getelementptr inbounds float, ptr %29, i64 %32
  store ptr %33, ptr %9, align 8
  store <8 x float> splat (float 0xFFF0000000000000), ptr %10, align 32
  store <8 x float> zeroinitializer, ptr %11, align 32
  store i64 0, ptr %12, align 8
  br label %34

34:
  %35 = load i64, ptr %12, align 8
  %36 = load i64, ptr %7, align 8
  %37 = icmp slt i64 %35, %36
  br i1 %37, label %38, label %54

38:
  %39 = load ptr, ptr %9, align 8
  %40 = load i64, ptr %12, align 8
  %41 = getelementptr inbounds float, ptr %39, i64 %40
  %42 = call <8 x float> @read(ptr noundef %41) #13
  store <8 x float> %42, ptr %13, align 32
  %43 = load <8 x float>, ptr %13, align 32
  %44 = load <8 x float>, ptr %10, align 32
  %45 = fcmp ogt <8 x float> %43, %44
  %46 = sext <8 x i1> %45 to <8 x i32>
  %47 = load <8 x float>, ptr %13, align 32
  %48 = load <8 x float>, ptr %10, align 32
  %49 = icmp slt <8 x i32> %46, zeroinitializer
  %50 = select <8 x i1> %49, <8 x float> %47, <8 x float> %48
  store <8 x float> %50, ptr %10, align 32
  br label %51

51:
  %52 = load i64, ptr %12, align 8
  %53 = add nsw i64 %52, 8
  store i64 %53, ptr %12, align 8
  br label %34, !llvm.loop !46

54:
  %55 = load <8 x float>, ptr %10, align 32
  %56 = call float @llvm.vector.reduce.fmax.v8f32(<8 x float> %55)
  store float %56, ptr %14, align 4
  store i64 0, ptr %15, align 8
  br label %57

57:
  %58 = load i64, ptr %15, align 8
  %59 = load i64, ptr %7, align 8
  %60 = icmp slt i64 %58, %59
  br i1 %60, label %61, label %92

61:
  store <8 x float> zeroinitializer, ptr %16, align 32
  %62 = load i64, ptr %15, align 8
  store i64 %62, ptr %17, align 8
  br label %63

63:
  %64 = load i64, ptr %17, align 8
  %65 = load i64, ptr %15, align 8
  %66 = add nsw i64 %65, 1024
  %67 = load i64, ptr %7, align 8
  %68 = call i64 @smaller(i64 noundef %66, i64 noundef %67) #13
  %69 = icmp slt i64 %64, %68
  br i1 %69, label %70, label %85

70:
  %71 = load ptr, ptr %9, align 8
  %72 = load i64, ptr %17, align 8
  %73 = getelementptr inbounds float, ptr %71, i64 %72
  %74 = call <8 x float> @read(ptr noundef %73) #13
  %75 = load float, ptr %14, align 4
  %76 = insertelement <8 x float> poison, float %75, i64 0
  %77 = shufflevector <8 x float> %76, <8 x float> poison, <8 x i32> zeroinitializer
  %78 = fsub <8 x float> %74, %77
  %79 = call <8 x float> @exponential(<8 x float> noundef %78) #13
  %80 = load <8 x float>, ptr %16, align 32
  %81 = fadd <8 x float> %80, %79
  store <8 x float> %81, ptr %16, align 32
  br label %82

82:
  %83 = load i64, ptr %17, align 8
  %84 = add nsw i64 %83, 8
  store i64 %84, ptr %17, align 8
  br label %63, !llvm.loop !47

85:
  %86 = load <8 x float>, ptr %16, align 32
  %87 = load <8 x float>, ptr %11, align 32
  %88 = fadd <8 x float> %87, %86
  store <8 x float> %88, ptr %11, align 32
  br label %89

89:
  %90 = load i64, ptr %15, align 8
  %91 = add nsw i64 %90, 1024
  store i64 %91, ptr %15, align 8
  br label %57, !llvm.loop !48

92:
  %93 = load <8 x float>, ptr %11, align 32
  %94 = call float @sum(<8 x float> noundef %93) #13
  %95 = call float @llvm.log.f32(float %94)
  %96 = load float, ptr %14, align 4
  %97 = fadd float %95, %96
  %98 = load ptr, ptr %4, align 8
  %99 = getelementptr inbounds nuw %struct.anon.2, ptr %98, i32 0, i32 0
  %100 = load ptr, ptr %99, align 8
  %101 = load i64, ptr %8, align 8
  %102 = getelementptr inbounds float, ptr %100, i64 %101
  store float %97, ptr %102, align 4
  br label %103

103:
  %104 = load i64, ptr %8, align 8
  %105 = add nsw i64 %104, 1
  store i64 %105, ptr %8, align 8
  br label %22, !llvm.loop !49

106:
  ret void
}

define internal i64 @smaller(i64 noundef %0, i64 noundef %1) #1 {
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  store i64 %0, ptr %3, align 8
  store i64 %1, ptr %4, align 8
  %5 = load i64, ptr %3, align 8
  %6 = load i64, ptr %4, align 8
  %7 = icmp slt i64 %5, %6
  br i1 %7, label %8, label %10

8:
  %9 = load i64, ptr %3, align 8
  br label %12

10:
  %11 = load i64, ptr %4, align 8
  br label %12

12:
  %13 = phi i64 [ %9, %8 ], [ %11, %10 ]
  ret i64 %13
}

define internal void @tile_4_1_NO_AHEAD(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 4, i32 noundef 1, i32 noundef 0) #13
  ret void
}

define internal void @tile_4_2_NEAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 4, i32 noundef 2, i32 noundef 4096) #13
  ret void
}

define internal void @tile_4_2_FAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 4, i32 noundef 2, i32 noundef 8192) #13
  ret void
}

define internal void @tile_4_3_FAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 4, i32 noundef 3, i32 noundef 8192) #13
  ret void
}

define internal void @tile_4_4_FAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 4, i32 noundef 4, i32 noundef 8192) #13
  ret void
}

define internal void @tile_8_1_NO_AHEAD(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 8, i32 noundef 1, i32 noundef 0) #13
  ret void
}

define internal void @tile_8_2_NEAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 8, i32 noundef 2, i32 noundef 4096) #13
  ret void
}

define internal void @tile_8_2_FAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 8, i32 noundef 2, i32 noundef 8192) #13
  ret void
}

define internal void @tile_8_3_FAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 8, i32 noundef 3, i32 noundef 8192) #13
  ret void
}

define internal void @tile_8_4_FAR(ptr noundef %0, i64 noundef %1, i64 noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load i64, ptr %5, align 8
  %9 = load i64, ptr %6, align 8
  call void @multiply_tile(ptr noundef %7, i64 noundef %8, i64 noundef %9, i32 noundef 8, i32 noundef 4, i32 noundef 8192) #13
  ret void
}

define internal void @multiply_tile(ptr noundef %0, i64 noundef %1, i64 noundef %2, i32 noundef %3, i32 noundef %4, i32 noundef %5) #3 {
  %7 = alloca ptr, align 8
  %8 = alloca i64, align 8
  %9 = alloca i64, align 8
  %10 = alloca i32, align 4
  %11 = alloca i32, align 4
  %12 = alloca i32, align 4
  %13 = alloca ptr, align 8
  %14 = alloca i64, align 8
  %15 = alloca i64, align 8
  %16 = alloca i64, align 8
  %17 = alloca i64, align 8
  %18 = alloca i64, align 8
  %19 = alloca ptr, align 8
  %20 = alloca ptr, align 8
  %21 = alloca ptr, align 8
  %22 = alloca ptr, align 8
  %23 = alloca ptr, align 8
  %24 = alloca ptr, align 8
  %25 = alloca ptr, align 8
  %26 = alloca i32, align 4
  %27 = alloca [4 x [2 x <8 x float>]], align 32
  %28 = alloca i32, align 4
  %29 = alloca i32, align 4
  %30 = alloca i64, align 8
  %31 = alloca [4 x [2 x <8 x i32>]], align 32
  %32 = alloca i32, align 4
  %33 = alloca i32, align 4
  %34 = alloca i64, align 8
  %35 = alloca [4 x [2 x <16 x i16>]], align 32
  %36 = alloca i32, align 4
  %37 = alloca ptr, align 8
  %38 = alloca ptr, align 8
  %39 = alloca [2 x <32 x i8>], align 32
  %40 = alloca i32, align 4
  %41 = alloca i32, align 4
  %42 = alloca i32, align 4
  %43 = alloca ptr, align 8
  %44 = alloca <32 x i8>, align 32
  %45 = alloca i32, align 4
  %46 = alloca <16 x i16>, align 32
  %47 = alloca <8 x i32>, align 32
  %48 = alloca <32 x i8>, align 32
  %49 = alloca <16 x i16>, align 32
  %50 = alloca i32, align 4
  %51 = alloca i32, align 4
  %52 = alloca i32, align 4
  %53 = alloca i64, align 8
  %54 = alloca <8 x float>, align 32
  %55 = alloca <8 x float>, align 32
  %56 = alloca i32, align 4
  %57 = alloca <8 x float>, align 32
  %58 = alloca <8 x float>, align 32
  %59 = alloca <8 x float>, align 32
  %60 = alloca i32, align 4
  %61 = alloca i32, align 4
  store ptr %0, ptr %7, align 8
  store i64 %1, ptr %8, align 8
  store i64 %2, ptr %9, align 8
  store i32 %3, ptr %10, align 4
  store i32 %4, ptr %11, align 4
  store i32 %5, ptr %12, align 4
  %62 = load ptr, ptr %7, align 8
  %63 = getelementptr inbounds nuw %struct.anon, ptr %62, i32 0, i32 0
  %64 = load ptr, ptr %63, align 8
  store ptr %64, ptr %13, align 8
  %65 = load ptr, ptr %13, align 8
  %66 = getelementptr inbounds nuw %struct.matrix, ptr %65, i32 0, i32 4
  %67 = load i64, ptr %66, align 8
  store i64 %67, ptr %14, align 8
  %68 = load ptr, ptr %13, align 8
  %69 = getelementptr inbounds nuw %struct.matrix, ptr %68, i32 0, i32 5
  %70 = load i64, ptr %69, align 8
  store i64 %70, ptr %15, align 8
  %71 = load ptr, ptr %13, align 8
  %72 = getelementptr inbounds nuw %struct.matrix, ptr %71, i32 0, i32 8
  %73 = load i64, ptr %72, align 8
  store i64 %73, ptr %16, align 8
  %74 = load ptr, ptr %13, align 8
  %75 = getelementptr inbounds nuw %struct.matrix, ptr %74, i32 0, i32 6
  %76 = load i64, ptr %75, align 8
  store i64 %76, ptr %17, align 8
  %77 = load ptr, ptr %13, align 8
  %78 = getelementptr inbounds nuw %struct.matrix, ptr %77, i32 0, i32 3
  %79 = load i64, ptr %78, align 8
  %80 = load i32, ptr %10, align 4
  %81 = call i64 @activation_bytes(i32 noundef %80) #13
  %82 = mul nsw i64 %79, %81
  store i64 %82, ptr %18, align 8
  %83 = load ptr, ptr %13, align 8
  %84 = getelementptr inbounds nuw %struct.matrix, ptr %83, i32 0, i32 0
  %85 = load ptr, ptr %84, align 8
  %86 = load i64, ptr %8, align 8
  %87 = load i64, ptr %14, align 8
  %88 = mul nsw i64 %86, %87
  %89 = load i64, ptr %15, align 8
  %90 = mul nsw i64 %88, %89
  %91 = mul nsw i64 %90, 4
  %92 = mul nsw i64 %91, 16
  %93 = getelementptr inbounds i8, ptr %85, i64 %92
  store ptr %93, ptr %19, align 8
  %94 = load ptr, ptr %13, align 8
  %95 = getelementptr inbounds nuw %struct.matrix, ptr %94, i32 0, i32 1
  %96 = load ptr, ptr %95, align 8
  %97 = load i64, ptr %8, align 8
  %98 = load ptr, ptr %13, align 8
  %99 = getelementptr inbounds nuw %struct.matrix, ptr %98, i32 0, i32 7
  %100 = load i64, ptr %99, align 8
  %101 = mul nsw i64 %97, %100
  %102 = getelementptr inbounds half, ptr %96, i64 %101
  store ptr %102, ptr %20, align 8
  %103 = load ptr, ptr %13, align 8
  %104 = getelementptr inbounds nuw %struct.matrix, ptr %103, i32 0, i32 2
  %105 = load ptr, ptr %104, align 8
  %106 = load i64, ptr %8, align 8
  %107 = load ptr, ptr %13, align 8
  %108 = getelementptr inbounds nuw %struct.matrix, ptr %107, i32 0, i32 7
  %109 = load i64, ptr %108, align 8
  %110 = mul nsw i64 %106, %109
  %111 = getelementptr inbounds half, ptr %105, i64 %110
  store ptr %111, ptr %21, align 8
  %112 = load ptr, ptr %7, align 8
  %113 = getelementptr inbounds nuw %struct.anon, ptr %112, i32 0, i32 1
  %114 = load ptr, ptr %113, align 8
  %115 = load i64, ptr %9, align 8
  %116 = load i64, ptr %18, align 8
  %117 = mul nsw i64 %115, %116
  %118 = getelementptr inbounds i8, ptr %114, i64 %117
  store ptr %118, ptr %22, align 8
  %119 = load ptr, ptr %7, align 8
  %120 = getelementptr inbounds nuw %struct.anon, ptr %119, i32 0, i32 2
  %121 = load ptr, ptr %120, align 8
  %122 = load i64, ptr %9, align 8
  %123 = load i64, ptr %14, align 8
  %124 = mul nsw i64 %122, %123
  %125 = getelementptr inbounds float, ptr %121, i64 %124
  store ptr %125, ptr %23, align 8
  %126 = load ptr, ptr %7, align 8
  %127 = getelementptr inbounds nuw %struct.anon, ptr %126, i32 0, i32 3
  %128 = load ptr, ptr %127, align 8
  %129 = load i64, ptr %9, align 8
  %130 = load i64, ptr %14, align 8
  %131 = mul nsw i64 %129, %130
  %132 = getelementptr inbounds float, ptr %128, i64 %131
  store ptr %132, ptr %24, align 8
  %133 = load ptr, ptr %7, align 8
  %134 = getelementptr inbounds nuw %struct.anon, ptr %133, i32 0, i32 4
  %135 = load ptr, ptr %134, align 8
  %136 = load i64, ptr %9, align 8
  %137 = load i64, ptr %16, align 8
  %138 = mul nsw i64 %136, %137
  %139 = getelementptr inbounds float, ptr %135, i64 %138
  %140 = load i64, ptr %8, align 8
  %141 = mul nsw i64 %140, 16
  %142 = load i64, ptr %16, align 8
  %143 = sub nsw i64 %142, 16
  %144 = call i64 @smaller(i64 noundef %141, i64 noundef %143) #13
  %145 = getelementptr inbounds float, ptr %139, i64 %144
  store ptr %145, ptr %25, align 8
  %146 = load i32, ptr %10, align 4
  %147 = icmp eq i32 %146, 8
  br i1 %147, label %148, label %149

148:
  br label %149

149:
  %150 = phi i1 [ false, %6 ], [ false, %148 ]
  %151 = zext i1 %150 to i64
  %152 = select i1 %150, i32 1, i32 2
  store i32 %152, ptr %26, align 4
  store i32 0, ptr %28, align 4
  br label %153

153:
  %154 = load i32, ptr %28, align 4
  %155 = load i32, ptr %11, align 4
  %156 = icmp slt i32 %154, %155
  br i1 %156, label %157, label %175

157:
  store i32 0, ptr %29, align 4
  br label %158

158:
  %159 = load i32, ptr %29, align 4
  %160 = icmp slt i32 %159, 2
  br i1 %160, label %161, label %171

161:
  %162 = load i32, ptr %28, align 4
  %163 = sext i32 %162 to i64
  %164 = getelementptr inbounds [4 x [2 x <8 x float>]], ptr %27, i64 0, i64 %163
  %165 = load i32, ptr %29, align 4
  %166 = sext i32 %165 to i64
  %167 = getelementptr inbounds [2 x <8 x float>], ptr %164, i64 0, i64 %166
  store <8 x float> zeroinitializer, ptr %167, align 32
  br label %168

168:
  %169 = load i32, ptr %29, align 4
  %170 = add nsw i32 %169, 1
  store i32 %170, ptr %29, align 4
  br label %158, !llvm.loop !50

171:
  br label %172

172:
  %173 = load i32, ptr %28, align 4
  %174 = add nsw i32 %173, 1
  store i32 %174, ptr %28, align 4
  br label %153, !llvm.loop !51

175:
  store i64 0, ptr %30, align 8
  br label %176

176:
  %177 = load i64, ptr %30, align 8
  %178 = load i64, ptr %14, align 8
  %179 = icmp slt i64 %177, %178
  br i1 %179, label %180, label %515

180:
  store i32 0, ptr %32, align 4
  br label %181

181:
  %182 = load i32, ptr %32, align 4
  %183 = load i32, ptr %11, align 4
  %184 = icmp slt i32 %182, %183
  br i1 %184, label %185, label %203

185:
  store i32 0, ptr %33, align 4
  br label %186

186:
  %187 = load i32, ptr %33, align 4
  %188 = icmp slt i32 %187, 2
  br i1 %188, label %189, label %199

189:
  %190 = load i32, ptr %32, align 4
  %191 = sext i32 %190 to i64
  %192 = getelementptr inbounds [4 x [2 x <8 x i32>]], ptr %31, i64 0, i64 %191
  %193 = load i32, ptr %33, align 4
  %194 = sext i32 %193 to i64
  %195 = getelementptr inbounds [2 x <8 x i32>], ptr %192, i64 0, i64 %194
  store <8 x i32> zeroinitializer, ptr %195, align 32
  br label %196

196:
  %197 = load i32, ptr %33, align 4
  %198 = add nsw i32 %197, 1
  store i32 %198, ptr %33, align 4
  br label %186, !llvm.loop !52

199:
  br label %200

200:
  %201 = load i32, ptr %32, align 4
  %202 = add nsw i32 %201, 1
  store i32 %202, ptr %32, align 4
  br label %181, !llvm.loop !53

203:
  %204 = load i64, ptr %30, align 8
  %205 = load i64, ptr %15, align 8
  %206 = mul nsw i64 %204, %205
  store i64 %206, ptr %34, align 8
  br label %207

207:
  %208 = load i64, ptr %34, align 8
  %209 = load i64, ptr %30, align 8
  %210 = add nsw i64 %209, 1
  %211 = load i64, ptr %15, align 8
  %212 = mul nsw i64 %210, %211
  %213 = icmp slt i64 %208, %212
  br i1 %213, label %214, label %419

214:
  store i32 0, ptr %36, align 4
  br label %215

215:
  %216 = load i32, ptr %36, align 4
  %217 = icmp slt i32 %216, 4
  br i1 %217, label %218, label %378

218:
  %219 = load ptr, ptr %19, align 8
  %220 = load i64, ptr %34, align 8
  %221 = load i32, ptr %36, align 4
  %222 = sext i32 %221 to i64
  %223 = add nsw i64 %220, %222
  %224 = mul nsw i64 %223, 4
  %225 = mul nsw i64 %224, 16
  %226 = getelementptr inbounds i8, ptr %219, i64 %225
  store ptr %226, ptr %37, align 8
  %227 = load ptr, ptr %22, align 8
  %228 = load i64, ptr %34, align 8
  %229 = load i32, ptr %36, align 4
  %230 = sext i32 %229 to i64
  %231 = add nsw i64 %228, %230
  %232 = mul nsw i64 %231, 4
  %233 = load i32, ptr %26, align 4
  %234 = sext i32 %233 to i64
  %235 = mul nsw i64 %232, %234
  %236 = getelementptr inbounds i8, ptr %227, i64 %235
  store ptr %236, ptr %38, align 8
  store i32 0, ptr %40, align 4
  br label %237

237:
  %238 = load i32, ptr %40, align 4
  %239 = icmp slt i32 %238, 2
  br i1 %239, label %240, label %254

240:
  %241 = load ptr, ptr %37, align 8
  %242 = load i32, ptr %40, align 4
  %243 = mul nsw i32 %242, 4
  %244 = mul nsw i32 %243, 8
  %245 = sext i32 %244 to i64
  %246 = getelementptr inbounds i8, ptr %241, i64 %245
  %247 = load <32 x i8>, ptr %246, align 1
  %248 = load i32, ptr %40, align 4
  %249 = sext i32 %248 to i64
  %250 = getelementptr inbounds [2 x <32 x i8>], ptr %39, i64 0, i64 %249
  store <32 x i8> %247, ptr %250, align 32
  br label %251

251:
  %252 = load i32, ptr %40, align 4
  %253 = add nsw i32 %252, 1
  store i32 %253, ptr %40, align 4
  br label %237, !llvm.loop !54

254:
  %255 = load i32, ptr %12, align 4
  %256 = icmp eq i32 %255, 4096
  br i1 %256, label %257, label %262

257:
  %258 = load ptr, ptr %37, align 8
  %259 = load i32, ptr %12, align 4
  %260 = sext i32 %259 to i64
  %261 = getelementptr inbounds i8, ptr %258, i64 %260
  call void @llvm.prefetch.p0(ptr %261, i32 0, i32 0, i32 1)
  br label %262

262:
  %263 = load i32, ptr %12, align 4
  %264 = icmp eq i32 %263, 8192
  br i1 %264, label %265, label %270

265:
  %266 = load ptr, ptr %37, align 8
  %267 = load i32, ptr %12, align 4
  %268 = sext i32 %267 to i64
  %269 = getelementptr inbounds i8, ptr %266, i64 %268
  call void @llvm.prefetch.p0(ptr %269, i32 0, i32 2, i32 1)
  br label %270

270:
  store i32 0, ptr %41, align 4
  br label %271

271:
  %272 = load i32, ptr %41, align 4
  %273 = load i32, ptr %26, align 4
  %274 = icmp slt i32 %272, %273
  br i1 %274, label %275, label %374

275:
  store i32 0, ptr %42, align 4
  br label %276

276:
  %277 = load i32, ptr %42, align 4
  %278 = load i32, ptr %11, align 4
  %279 = icmp slt i32 %277, %278
  br i1 %279, label %280, label %370

280:
  %281 = load ptr, ptr %38, align 8
  %282 = load i32, ptr %42, align 4
  %283 = sext i32 %282 to i64
  %284 = load i64, ptr %18, align 8
  %285 = mul nsw i64 %283, %284
  %286 = getelementptr inbounds i8, ptr %281, i64 %285
  %287 = load i32, ptr %41, align 4
  %288 = mul nsw i32 4, %287
  %289 = sext i32 %288 to i64
  %290 = getelementptr inbounds i8, ptr %286, i64 %289
  store ptr %290, ptr %43, align 8
  %291 = load ptr, ptr %43, align 8
  %292 = load i32, ptr %291, align 1
  %293 = insertelement <8 x i32> poison, i32 %292, i64 0
  %294 = shufflevector <8 x i32> %293, <8 x i32> poison, <8 x i32> zeroinitializer
  %295 = bitcast <8 x i32> %294 to <32 x i8>
  store <32 x i8> %295, ptr %44, align 32
  store i32 0, ptr %45, align 4
  br label %296

296:
  %297 = load i32, ptr %45, align 4
  %298 = icmp slt i32 %297, 2
  br i1 %298, label %299, label %366

299:
  %300 = load i32, ptr %10, align 4
  %301 = icmp eq i32 %300, 8
  br i1 %301, label %302, label %328

302:
  %303 = load i32, ptr %41, align 4
  %304 = load i32, ptr %45, align 4
  %305 = sext i32 %304 to i64
  %306 = getelementptr inbounds [2 x <32 x i8>], ptr %39, i64 0, i64 %305
  %307 = load <32 x i8>, ptr %306, align 32
  %308 = call <16 x i16> @every_other(i32 noundef %303, <32 x i8> noundef %307) #13
  store <16 x i16> %308, ptr %46, align 32
  %309 = load <16 x i16>, ptr %46, align 32
  %310 = load <32 x i8>, ptr %44, align 32
  %311 = bitcast <32 x i8> %310 to <16 x i16>
  %312 = call <8 x i32> @multiply_pairs(<16 x i16> noundef %309, <16 x i16> noundef %311) #13
  store <8 x i32> %312, ptr %47, align 32
  %313 = load i32, ptr %42, align 4
  %314 = sext i32 %313 to i64
  %315 = getelementptr inbounds [4 x [2 x <8 x i32>]], ptr %31, i64 0, i64 %314
  %316 = load i32, ptr %45, align 4
  %317 = sext i32 %316 to i64
  %318 = getelementptr inbounds [2 x <8 x i32>], ptr %315, i64 0, i64 %317
  %319 = load <8 x i32>, ptr %318, align 32
  %320 = load <8 x i32>, ptr %47, align 32
  %321 = call <8 x i32> @add_ints(<8 x i32> noundef %319, <8 x i32> noundef %320) #13
  %322 = load i32, ptr %42, align 4
  %323 = sext i32 %322 to i64
  %324 = getelementptr inbounds [4 x [2 x <8 x i32>]], ptr %31, i64 0, i64 %323
  %325 = load i32, ptr %45, align 4
  %326 = sext i32 %325 to i64
  %327 = getelementptr inbounds [2 x <8 x i32>], ptr %324, i64 0, i64 %326
  store <8 x i32> %321, ptr %327, align 32
  br label %362

328:
  %329 = load i32, ptr %10, align 4
  %330 = load i32, ptr %41, align 4
  %331 = load i32, ptr %45, align 4
  %332 = sext i32 %331 to i64
  %333 = getelementptr inbounds [2 x <32 x i8>], ptr %39, i64 0, i64 %332
  %334 = load <32 x i8>, ptr %333, align 32
  %335 = call <32 x i8> @without_sign(i32 noundef %329, i32 noundef %330, <32 x i8> noundef %334) #13
  store <32 x i8> %335, ptr %48, align 32
  %336 = load <32 x i8>, ptr %48, align 32
  %337 = load <32 x i8>, ptr %44, align 32
  %338 = call <16 x i16> @multiply_byte_pairs(<32 x i8> noundef %336, <32 x i8> noundef %337) #13
  store <16 x i16> %338, ptr %49, align 32
  %339 = load i32, ptr %36, align 4
  %340 = icmp ne i32 %339, 0
  br i1 %340, label %344, label %341

341:
  %342 = load i32, ptr %41, align 4
  %343 = icmp ne i32 %342, 0
  br i1 %343, label %344, label %354

344:
  %345 = load i32, ptr %42, align 4
  %346 = sext i32 %345 to i64
  %347 = getelementptr inbounds [4 x [2 x <16 x i16>]], ptr %35, i64 0, i64 %346
  %348 = load i32, ptr %45, align 4
  %349 = sext i32 %348 to i64
  %350 = getelementptr inbounds [2 x <16 x i16>], ptr %347, i64 0, i64 %349
  %351 = load <16 x i16>, ptr %350, align 32
  %352 = load <16 x i16>, ptr %49, align 32
  %353 = call <16 x i16> @add_shorts(<16 x i16> noundef %351, <16 x i16> noundef %352) #13
  store <16 x i16> %353, ptr %49, align 32
  br label %354

354:
  %355 = load <16 x i16>, ptr %49, align 32
  %356 = load i32, ptr %42, align 4
  %357 = sext i32 %356 to i64
  %358 = getelementptr inbounds [4 x [2 x <16 x i16>]], ptr %35, i64 0, i64 %357
  %359 = load i32, ptr %45, align 4
  %360 = sext i32 %359 to i64
  %361 = getelementptr inbounds [2 x <16 x i16>], ptr %358, i64 0, i64 %360
  store <16 x i16> %355, ptr %361, align 32
  br label %362

362:
  br label %363

363:
  %364 = load i32, ptr %45, align 4
  %365 = add nsw i32 %364, 1
  store i32 %365, ptr %45, align 4
  br label %296, !llvm.loop !55

366:
  br label %367

367:
  %368 = load i32, ptr %42, align 4
  %369 = add nsw i32 %368, 1
  store i32 %369, ptr %42, align 4
  br label %276, !llvm.loop !56

370:
  br label %371

371:
  %372 = load i32, ptr %41, align 4
  %373 = add nsw i32 %372, 1
  store i32 %373, ptr %41, align 4
  br label %271, !llvm.loop !57

374:
  br label %375

375:
  %376 = load i32, ptr %36, align 4
  %377 = add nsw i32 %376, 1
  store i32 %377, ptr %36, align 4
  br label %215, !llvm.loop !58

378:
  %379 = load i32, ptr %10, align 4
  %380 = icmp eq i32 %379, 4
  br i1 %380, label %381, label %415

381:
  store i32 0, ptr %50, align 4
  br label %382

382:
  %383 = load i32, ptr %50, align 4
  %384 = load i32, ptr %11, align 4
  %385 = icmp slt i32 %383, %384
  br i1 %385, label %386, label %414

386:
  store i32 0, ptr %51, align 4
  br label %387

387:
  %388 = load i32, ptr %51, align 4
  %389 = icmp slt i32 %388, 2
  br i1 %389, label %390, label %410

390:
  %391 = load i32, ptr %50, align 4
  %392 = sext i32 %391 to i64
  %393 = getelementptr inbounds [4 x [2 x <16 x i16>]], ptr %35, i64 0, i64 %392
  %394 = load i32, ptr %51, align 4
  %395 = sext i32 %394 to i64
  %396 = getelementptr inbounds [2 x <16 x i16>], ptr %393, i64 0, i64 %395
  %397 = load <16 x i16>, ptr %396, align 32
  %398 = call <8 x i32> @multiply_pairs(<16 x i16> noundef %397, <16 x i16> noundef splat (i16 1)) #13
  %399 = load i32, ptr %50, align 4
  %400 = sext i32 %399 to i64
  %401 = getelementptr inbounds [4 x [2 x <8 x i32>]], ptr %31, i64 0, i64 %400
  %402 = load i32, ptr %51, align 4
  %403 = sext i32 %402 to i64
  %404 = getelementptr inbounds [2 x <8 x i32>], ptr %401, i64 0, i64 %403
  %405 = load <8 x i32>, ptr %404, align 32
  %406 = add <8 x i32> %405, %398
  store <8 x i32> %406, ptr %404, align 32
  br label %407

407:
  %408 = load i32, ptr %51, align 4
  %409 = add nsw i32 %408, 1
  store i32 %409, ptr %51, align 4
  br label %387, !llvm.loop !59

410:
  br label %411

411:
  %412 = load i32, ptr %50, align 4
  %413 = add nsw i32 %412, 1
  store i32 %413, ptr %50, align 4
  br label %382, !llvm.loop !60

414:
  br label %415

415:
  br label %416

416:
  %417 = load i64, ptr %34, align 8
  %418 = add nsw i64 %417, 4
  store i64 %418, ptr %34, align 8
  br label %207, !llvm.loop !61

419:
  store i32 0, ptr %52, align 4
  br label %420

420:
  %421 = load i32, ptr %52, align 4
  %422 = icmp slt i32 %421, 2
  br i1 %422, label %423, label %511

423:
  %424 = load i64, ptr %30, align 8
  %425 = load i64, ptr %17, align 8
  %426 = mul nsw i64 %424, %425
  %427 = load i32, ptr %52, align 4
  %428 = mul nsw i32 %427, 8
  %429 = sext i32 %428 to i64
  %430 = add nsw i64 %426, %429
  store i64 %430, ptr %53, align 8
  %431 = load ptr, ptr %20, align 8
  %432 = load i64, ptr %53, align 8
  %433 = getelementptr inbounds half, ptr %431, i64 %432
  %434 = call <8 x float> @read_wide_halves(ptr noundef %433) #13
  store <8 x float> %434, ptr %54, align 32
  %435 = load ptr, ptr %21, align 8
  %436 = load i64, ptr %53, align 8
  %437 = getelementptr inbounds half, ptr %435, i64 %436
  %438 = call <8 x float> @read_wide_halves(ptr noundef %437) #13
  store <8 x float> %438, ptr %55, align 32
  %439 = load i32, ptr %10, align 4
  %440 = icmp eq i32 %439, 8
  br i1 %440, label %441, label %445

441:
  br i1 false, label %442, label %445

442:
  %443 = load <8 x float>, ptr %55, align 32
  %444 = fadd <8 x float> %443, splat (float 1.280000e+02)
  store <8 x float> %444, ptr %55, align 32
  br label %445

445:
  store i32 0, ptr %56, align 4
  br label %446

446:
  %447 = load i32, ptr %56, align 4
  %448 = load i32, ptr %11, align 4
  %449 = icmp slt i32 %447, %448
  br i1 %449, label %450, label %507

450:
  %451 = load ptr, ptr %23, align 8
  %452 = load i32, ptr %56, align 4
  %453 = sext i32 %452 to i64
  %454 = load i64, ptr %14, align 8
  %455 = mul nsw i64 %453, %454
  %456 = load i64, ptr %30, align 8
  %457 = add nsw i64 %455, %456
  %458 = getelementptr inbounds float, ptr %451, i64 %457
  %459 = load float, ptr %458, align 4
  %460 = insertelement <8 x float> poison, float %459, i64 0
  %461 = shufflevector <8 x float> %460, <8 x float> poison, <8 x i32> zeroinitializer
  store <8 x float> %461, ptr %57, align 32
  %462 = load ptr, ptr %24, align 8
  %463 = load i32, ptr %56, align 4
  %464 = sext i32 %463 to i64
  %465 = load i64, ptr %14, align 8
  %466 = mul nsw i64 %464, %465
  %467 = load i64, ptr %30, align 8
  %468 = add nsw i64 %466, %467
  %469 = getelementptr inbounds float, ptr %462, i64 %468
  %470 = load float, ptr %469, align 4
  %471 = insertelement <8 x float> poison, float %470, i64 0
  %472 = shufflevector <8 x float> %471, <8 x float> poison, <8 x i32> zeroinitializer
  store <8 x float> %472, ptr %58, align 32
  %473 = load i32, ptr %56, align 4
  %474 = sext i32 %473 to i64
  %475 = getelementptr inbounds [4 x [2 x <8 x i32>]], ptr %31, i64 0, i64 %474
  %476 = load i32, ptr %52, align 4
  %477 = sext i32 %476 to i64
  %478 = getelementptr inbounds [2 x <8 x i32>], ptr %475, i64 0, i64 %477
  %479 = load <8 x i32>, ptr %478, align 32
  %480 = sitofp <8 x i32> %479 to <8 x float>
  store <8 x float> %480, ptr %59, align 32
  %481 = load <8 x float>, ptr %55, align 32
  %482 = fneg <8 x float> %481
  %483 = load <8 x float>, ptr %58, align 32
  %484 = load <8 x float>, ptr %59, align 32
  %485 = call <8 x float> @llvm.fma.v8f32(<8 x float> %482, <8 x float> %483, <8 x float> %484)
  store <8 x float> %485, ptr %59, align 32
  %486 = load <8 x float>, ptr %59, align 32
  %487 = load <8 x float>, ptr %54, align 32
  %488 = load <8 x float>, ptr %57, align 32
  %489 = fmul <8 x float> %487, %488
  %490 = load i32, ptr %56, align 4
  %491 = sext i32 %490 to i64
  %492 = getelementptr inbounds [4 x [2 x <8 x float>]], ptr %27, i64 0, i64 %491
  %493 = load i32, ptr %52, align 4
  %494 = sext i32 %493 to i64
  %495 = getelementptr inbounds [2 x <8 x float>], ptr %492, i64 0, i64 %494
  %496 = load <8 x float>, ptr %495, align 32
  %497 = call <8 x float> @llvm.fma.v8f32(<8 x float> %486, <8 x float> %489, <8 x float> %496)
  %498 = load i32, ptr %56, align 4
  %499 = sext i32 %498 to i64
  %500 = getelementptr inbounds [4 x [2 x <8 x float>]], ptr %27, i64 0, i64 %499
  %501 = load i32, ptr %52, align 4
  %502 = sext i32 %501 to i64
  %503 = getelementptr inbounds [2 x <8 x float>], ptr %500, i64 0, i64 %502
  store <8 x float> %497, ptr %503, align 32
  br label %504

504:
  %505 = load i32, ptr %56, align 4
  %506 = add nsw i32 %505, 1
  store i32 %506, ptr %56, align 4
  br label %446, !llvm.loop !62

507:
  br label %508

508:
  %509 = load i32, ptr %52, align 4
  %510 = add nsw i32 %509, 1
  store i32 %510, ptr %52, align 4
  br label %420, !llvm.loop !63

511:
  br label %512

512:
  %513 = load i64, ptr %30, align 8
  %514 = add nsw i64 %513, 1
  store i64 %514, ptr %30, align 8
  br label %176, !llvm.loop !64

515:
  store i32 0, ptr %60, align 4
  br label %516

516:
  %517 = load i32, ptr %60, align 4
  %518 = load i32, ptr %11, align 4
  %519 = icmp slt i32 %517, %518
  br i1 %519, label %520, label %549

520:
  store i32 0, ptr %61, align 4
  br label %521

521:
  %522 = load i32, ptr %61, align 4
  %523 = icmp slt i32 %522, 2
  br i1 %523, label %524, label %545

524:
  %525 = load i32, ptr %60, align 4
  %526 = sext i32 %525 to i64
  %527 = getelementptr inbounds [4 x [2 x <8 x float>]], ptr %27, i64 0, i64 %526
  %528 = load i32, ptr %61, align 4
  %529 = sext i32 %528 to i64
  %530 = getelementptr inbounds [2 x <8 x float>], ptr %527, i64 0, i64 %529
  %531 = load <8 x float>, ptr %530, align 32
  %532 = load ptr, ptr %25, align 8
  %533 = load i32, ptr %60, align 4
  %534 = sext i32 %533 to i64
  %535 = load i64, ptr %16, align 8
  %536 = mul nsw i64 %534, %535
  %537 = getelementptr inbounds float, ptr %532, i64 %536
  %538 = load i32, ptr %61, align 4
  %539 = mul nsw i32 %538, 8
  %540 = sext i32 %539 to i64
  %541 = getelementptr inbounds float, ptr %537, i64 %540
  store <8 x float> %531, ptr %541, align 1
  br label %542

542:
  %543 = load i32, ptr %61, align 4
  %544 = add nsw i32 %543, 1
  store i32 %544, ptr %61, align 4
  br label %521, !llvm.loop !65

545:
  br label %546

546:
  %547 = load i32, ptr %60, align 4
  %548 = add nsw i32 %547, 1
  store i32 %548, ptr %60, align 4
  br label %516, !llvm.loop !66

549:
  ret void
}

define internal i64 @activation_bytes(i32 noundef %0) #1 {
  %2 = alloca i32, align 4
  store i32 %0, ptr %2, align 4
  %3 = load i32, ptr %2, align 4
  %4 = icmp eq i32 %3, 8
  br i1 %4, label %5, label %6

5:
  br label %6

6:
  %7 = phi i1 [ false, %1 ], [ true, %5 ]
  %8 = zext i1 %7 to i64
  %9 = select i1 %7, i32 2, i32 1
  %10 = sext i32 %9 to i64
  ret i64 %10
}

declare void @llvm.prefetch.p0(ptr readonly captures(none), i32 immarg, i32 immarg, i32 immarg) #5

define internal <16 x i16> @every_other(i32 noundef %0, <32 x i8> noundef %1) #3 {
  %3 = alloca i32, align 4
  %4 = alloca <32 x i8>, align 32
  store i32 %0, ptr %3, align 4
  store <32 x i8> %1, ptr %4, align 32
  %5 = load i32, ptr %3, align 4
  %6 = icmp ne i32 %5, 0
  br i1 %6, label %7, label %10

7:
  %8 = load <32 x i8>, ptr %4, align 32
  %9 = bitcast <32 x i8> %8 to <16 x i16>
  br label %14

10:
  %11 = load <32 x i8>, ptr %4, align 32
  %12 = bitcast <32 x i8> %11 to <16 x i16>
  %13 = shl <16 x i16> %12, splat (i16 8)
  br label %14

14:
  %15 = phi <16 x i16> [ %9, %7 ], [ %13, %10 ]
  %16 = ashr <16 x i16> %15, splat (i16 8)
  ret <16 x i16> %16
}

define internal <8 x i32> @multiply_pairs(<16 x i16> noundef %0, <16 x i16> noundef %1) #3 {
  %3 = alloca <16 x i16>, align 32
  %4 = alloca <16 x i16>, align 32
  store <16 x i16> %0, ptr %3, align 32
  store <16 x i16> %1, ptr %4, align 32
  %5 = load <16 x i16>, ptr %3, align 32
  %6 = bitcast <16 x i16> %5 to <4 x i64>
  %7 = load <16 x i16>, ptr %4, align 32
  %8 = bitcast <16 x i16> %7 to <4 x i64>
  %9 = call <4 x i64> @_mm256_madd_epi16(<4 x i64> noundef %6, <4 x i64> noundef %8) #13
  %10 = bitcast <4 x i64> %9 to <8 x i32>
  ret <8 x i32> %10
}

define internal <8 x i32> @add_ints(<8 x i32> noundef %0, <8 x i32> noundef %1) #3 {
  %3 = alloca <8 x i32>, align 32
  %4 = alloca <8 x i32>, align 32
  store <8 x i32> %0, ptr %3, align 32
  store <8 x i32> %1, ptr %4, align 32
  %5 = load <8 x i32>, ptr %3, align 32
  %6 = load <8 x i32>, ptr %4, align 32
  %7 = call <8 x i32> asm "vpaddd $2, $1, $0", "=x,x,x,~{dirflag},~{fpsr},~{flags}"(<8 x i32> %5, <8 x i32> %6) #14, !srcloc !67
  store <8 x i32> %7, ptr %3, align 32
  %8 = load <8 x i32>, ptr %3, align 32
  ret <8 x i32> %8
}

define internal <32 x i8> @without_sign(i32 noundef %0, i32 noundef %1, <32 x i8> noundef %2) #3 {
  %4 = alloca <32 x i8>, align 32
  %5 = alloca i32, align 4
  %6 = alloca i32, align 4
  %7 = alloca <32 x i8>, align 32
  store i32 %0, ptr %5, align 4
  store i32 %1, ptr %6, align 4
  store <32 x i8> %2, ptr %7, align 32
  %8 = load i32, ptr %5, align 4
  %9 = icmp eq i32 %8, 8
  br i1 %9, label %10, label %13

10:
  %11 = load <32 x i8>, ptr %7, align 32
  %12 = xor <32 x i8> %11, splat (i8 -128)
  store <32 x i8> %12, ptr %4, align 32
  br label %24

13:
  %14 = load i32, ptr %6, align 4
  %15 = icmp ne i32 %14, 0
  br i1 %15, label %16, label %19

16:
  %17 = load <32 x i8>, ptr %7, align 32
  %18 = lshr <32 x i8> %17, splat (i8 4)
  br label %22

19:
  %20 = load <32 x i8>, ptr %7, align 32
  %21 = and <32 x i8> %20, splat (i8 15)
  br label %22

22:
  %23 = phi <32 x i8> [ %18, %16 ], [ %21, %19 ]
  store <32 x i8> %23, ptr %4, align 32
  br label %24

24:
  %25 = load <32 x i8>, ptr %4, align 32
  ret <32 x i8> %25
}

define internal <16 x i16> @multiply_byte_pairs(<32 x i8> noundef %0, <32 x i8> noundef %1) #3 {
  %3 = alloca <32 x i8>, align 32
  %4 = alloca <32 x i8>, align 32
  store <32 x i8> %0, ptr %3, align 32
  store <32 x i8> %1, ptr %4, align 32
  %5 = load <32 x i8>, ptr %3, align 32
  %6 = bitcast <32 x i8> %5 to <4 x i64>
  %7 = load <32 x i8>, ptr %4, align 32
  %8 = bitcast <32 x i8> %7 to <4 x i64>
  %9 = call <4 x i64> @_mm256_maddubs_epi16(<4 x i64> noundef %6, <4 x i64> noundef %8) #13
  %10 = bitcast <4 x i64> %9 to <16 x i16>
  ret <16 x i16> %10
}

define internal <16 x i16> @add_shorts(<16 x i16> noundef %0, <16 x i16> noundef %1) #3 {
  %3 = alloca <16 x i16>, align 32
  %4 = alloca <16 x i16>, align 32
  store <16 x i16> %0, ptr %3, align 32
  store <16 x i16> %1, ptr %4, align 32
  %5 = load <16 x i16>, ptr %3, align 32
  %6 = load <16 x i16>, ptr %4, align 32
  %7 = call <16 x i16> asm "vpaddw $2, $1, $0", "=x,x,x,~{dirflag},~{fpsr},~{flags}"(<16 x i16> %5, <16 x i16> %6) #14, !srcloc !68
  store <16 x i16> %7, ptr %3, align 32
  %8 = load <16 x i16>, ptr %3, align 32
  ret <16 x i16> %8
}

define internal <8 x float> @read_wide_halves(ptr noundef %0) #3 {
  %2 = alloca ptr, align 8
  store ptr %0, ptr %2, align 8
  %3 = load ptr, ptr %2, align 8
  %4 = load <8 x half>, ptr %3, align 1
  %5 = fpext <8 x half> %4 to <8 x float>
  ret <8 x float> %5
}

declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>) #6

define internal <4 x i64> @_mm256_madd_epi16(<4 x i64> noundef %0, <4 x i64> noundef %1) #3 {
  %3 = alloca <4 x i64>, align 32
  %4 = alloca <4 x i64>, align 32
  store <4 x i64> %0, ptr %3, align 32
  store <4 x i64> %1, ptr %4, align 32
  %5 = load <4 x i64>, ptr %3, align 32
  %6 = bitcast <4 x i64> %5 to <16 x i16>
  %7 = load <4 x i64>, ptr %4, align 32
  %8 = bitcast <4 x i64> %7 to <16 x i16>
  %9 = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %6, <16 x i16> %8)
  %10 = bitcast <8 x i32> %9 to <4 x i64>
  ret <4 x i64> %10
}

declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>) #7

define internal <4 x i64> @_mm256_maddubs_epi16(<4 x i64> noundef %0, <4 x i64> noundef %1) #3 {
  %3 = alloca <4 x i64>, align 32
  %4 = alloca <4 x i64>, align 32
  store <4 x i64> %0, ptr %3, align 32
  store <4 x i64> %1, ptr %4, align 32
  %5 = load <4 x i64>, ptr %3, align 32
  %6 = bitcast <4 x i64> %5 to <32 x i8>
  %7 = load <4 x i64>, ptr %4, align 32
  %8 = bitcast <4 x i64> %7 to <32 x i8>
  %9 = call <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8> %6, <32 x i8> %8)
  %10 = bitcast <16 x i16> %9 to <4 x i64>
  ret <4 x i64> %10
}

declare <16 x i16> @llvm.x86.avx2.pmadd.ub.sw(<32 x i8>, <32 x i8>) #7

declare ptr @llvm.stacksave.p0() #8

define internal i64 @end_of_request(ptr noundef %0, i64 noundef %1, i64 noundef %2) #1 {
  %4 = alloca ptr, align 8
  %5 = alloca i64, align 8
  %6 = alloca i64, align 8
  %7 = alloca i32, align 4
  store ptr %0, ptr %4, align 8
  store i64 %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %8 = load ptr, ptr %4, align 8
  %9 = getelementptr inbounds nuw %struct.anon.0, ptr %8, i32 0, i32 3
  %10 = load ptr, ptr %9, align 8
  %11 = load i64, ptr %5, align 8
  %12 = getelementptr inbounds i32, ptr %10, i64 %11
  %13 = load i32, ptr %12, align 4
  store i32 %13, ptr %7, align 4
  br label %14

14:
  %15 = load i64, ptr %5, align 8
  %16 = load i64, ptr %6, align 8
  %17 = icmp slt i64 %15, %16
  br i1 %17, label %18, label %27

18:
  %19 = load ptr, ptr %4, align 8
  %20 = getelementptr inbounds nuw %struct.anon.0, ptr %19, i32 0, i32 3
  %21 = load ptr, ptr %20, align 8
  %22 = load i64, ptr %5, align 8
  %23 = getelementptr inbounds i32, ptr %21, i64 %22
  %24 = load i32, ptr %23, align 4
  %25 = load i32, ptr %7, align 4
  %26 = icmp eq i32 %24, %25
  br label %27

27:
  %28 = phi i1 [ false, %14 ], [ %26, %18 ]
  br i1 %28, label %29, label %32

29:
  %30 = load i64, ptr %5, align 8
  %31 = add nsw i64 %30, 1
  store i64 %31, ptr %5, align 8
  br label %14, !llvm.loop !69

32:
  %33 = load i64, ptr %5, align 8
  ret i64 %33
}

define internal void @attend_part(ptr noundef %0, i64 noundef %1, i64 noundef %2, i64 noundef %3, i64 noundef %4, ptr noundef %5, i64 noundef %6) #4 {
  %8 = alloca ptr, align 8
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca ptr, align 8
  %14 = alloca i64, align 8
  %15 = alloca ptr, align 8
  %16 = alloca i64, align 8
  %17 = alloca i64, align 8
  %18 = alloca ptr, align 8
  %19 = alloca ptr, align 8
  %20 = alloca i64, align 8
  %21 = alloca i64, align 8
  %22 = alloca i64, align 8
  %23 = alloca i64, align 8
  %24 = alloca i64, align 8
  %25 = alloca ptr, align 8
  %26 = alloca i64, align 8
  %27 = alloca i64, align 8
  %28 = alloca i64, align 8
  %29 = alloca i64, align 8
  %30 = alloca i64, align 8
  %31 = alloca i64, align 8
  %32 = alloca %struct.block, align 8
  %33 = alloca i32, align 4
  %34 = alloca i64, align 8
  %35 = alloca i64, align 8
  %36 = alloca i64, align 8
  %37 = alloca i64, align 8
  %38 = alloca [4 x ptr], align 16
  %39 = alloca [4 x ptr], align 16
  %40 = alloca i64, align 8
  %41 = alloca i64, align 8
  %42 = alloca i64, align 8
  %43 = alloca i64, align 8
  store ptr %0, ptr %8, align 8
  store i64 %1, ptr %9, align 8
  store i64 %2, ptr %10, align 8
  store i64 %3, ptr %11, align 8
  store i64 %4, ptr %12, align 8
  store ptr %5, ptr %13, align 8
  store i64 %6, ptr %14, align 8
  %44 = load ptr, ptr %8, align 8
  %45 = getelementptr inbounds nuw %struct.anon.0, ptr %44, i32 0, i32 0
  %46 = load ptr, ptr %45, align 8
  store ptr %46, ptr %15, align 8
  %47 = load ptr, ptr %15, align 8
  %48 = getelementptr inbounds nuw %struct.attention, ptr %47, i32 0, i32 2
  %49 = load i64, ptr %48, align 8
  store i64 %49, ptr %16, align 8
  %50 = load ptr, ptr %15, align 8
  %51 = getelementptr inbounds nuw %struct.attention, ptr %50, i32 0, i32 0
  %52 = load i64, ptr %51, align 8
  %53 = load ptr, ptr %15, align 8
  %54 = getelementptr inbounds nuw %struct.attention, ptr %53, i32 0, i32 1
  %55 = load i64, ptr %54, align 8
  %56 = sdiv i64 %52, %55
  store i64 %56, ptr %17, align 8
  %57 = load ptr, ptr %8, align 8
  %58 = getelementptr inbounds nuw %struct.anon.0, ptr %57, i32 0, i32 2
  %59 = load ptr, ptr %58, align 8
  store ptr %59, ptr %18, align 8
  %60 = load ptr, ptr %8, align 8
  %61 = getelementptr inbounds nuw %struct.anon.0, ptr %60, i32 0, i32 5
  %62 = load ptr, ptr %61, align 8
  %63 = load ptr, ptr %8, align 8
  %64 = getelementptr inbounds nuw %struct.anon.0, ptr %63, i32 0, i32 3
  %65 = load ptr, ptr %64, align 8
  %66 = load i64, ptr %9, align 8
  %67 = getelementptr inbounds i32, ptr %65, i64 %66
  %68 = load i32, ptr %67, align 4
  %69 = sext i32 %68 to i64
  %70 = getelementptr inbounds i32, ptr %62, i64 %69
  store ptr %70, ptr %19, align 8
  %71 = load i64, ptr %16, align 8
  %72 = mul nsw i64 %71, 32
  store i64 %72, ptr %20, align 8
  store i64 9223372036854775807, ptr %21, align 8
  store i64 0, ptr %22, align 8
  %73 = load i64, ptr %9, align 8
  store i64 %73, ptr %23, align 8
  br label %74

74:
  %75 = load i64, ptr %23, align 8
  %76 = load i64, ptr %10, align 8
  %77 = icmp slt i64 %75, %76
  br i1 %77, label %78, label %94

78:
  %79 = load i64, ptr %21, align 8
  %80 = load ptr, ptr %8, align 8
  %81 = load i64, ptr %23, align 8
  %82 = call i64 @oldest(ptr noundef %80, i64 noundef %81) #13
  %83 = call i64 @smaller(i64 noundef %79, i64 noundef %82) #13
  store i64 %83, ptr %21, align 8
  %84 = load i64, ptr %22, align 8
  %85 = load ptr, ptr %18, align 8
  %86 = load i64, ptr %23, align 8
  %87 = getelementptr inbounds i32, ptr %85, i64 %86
  %88 = load i32, ptr %87, align 4
  %89 = sext i32 %88 to i64
  %90 = call i64 @larger(i64 noundef %84, i64 noundef %89) #13
  store i64 %90, ptr %22, align 8
  br label %91

91:
  %92 = load i64, ptr %23, align 8
  %93 = add nsw i64 %92, 1
  store i64 %93, ptr %23, align 8
  br label %74, !llvm.loop !70

94:
  %95 = load i64, ptr %21, align 8
  %96 = load i64, ptr %21, align 8
  %97 = srem i64 %96, 32
  %98 = sub nsw i64 %95, %97
  %99 = load i64, ptr %12, align 8
  %100 = mul nsw i64 %99, 256
  %101 = call i64 @larger(i64 noundef %98, i64 noundef %100) #13
  store i64 %101, ptr %21, align 8
  %102 = load i64, ptr %22, align 8
  %103 = load i64, ptr %12, align 8
  %104 = add nsw i64 %103, 1
  %105 = mul nsw i64 %104, 256
  %106 = sub nsw i64 %105, 1
  %107 = call i64 @smaller(i64 noundef %102, i64 noundef %106) #13
  store i64 %107, ptr %22, align 8
  store i64 0, ptr %24, align 8
  br label %108

108:
  %109 = load i64, ptr %24, align 8
  %110 = load i64, ptr %10, align 8
  %111 = load i64, ptr %9, align 8
  %112 = sub nsw i64 %110, %111
  %113 = load i64, ptr %17, align 8
  %114 = mul nsw i64 %112, %113
  %115 = icmp slt i64 %109, %114
  br i1 %115, label %116, label %140

116:
  %117 = load ptr, ptr %13, align 8
  %118 = load i64, ptr %24, align 8
  %119 = load i64, ptr %14, align 8
  %120 = mul nsw i64 %118, %119
  %121 = getelementptr inbounds float, ptr %117, i64 %120
  store ptr %121, ptr %25, align 8
  store i64 0, ptr %26, align 8
  br label %122

122:
  %123 = load i64, ptr %26, align 8
  %124 = load i64, ptr %16, align 8
  %125 = add nsw i64 16, %124
  %126 = icmp slt i64 %123, %125
  br i1 %126, label %127, label %134

127:
  %128 = load ptr, ptr %25, align 8
  %129 = load i64, ptr %26, align 8
  %130 = getelementptr inbounds float, ptr %128, i64 %129
  call void @write(ptr noundef %130, <8 x float> noundef zeroinitializer) #13
  br label %131

131:
  %132 = load i64, ptr %26, align 8
  %133 = add nsw i64 %132, 8
  store i64 %133, ptr %26, align 8
  br label %122, !llvm.loop !71

134:
  %135 = load ptr, ptr %25, align 8
  %136 = getelementptr inbounds float, ptr %135, i64 8
  store float 0xFFF0000000000000, ptr %136, align 4
  br label %137

137:
  %138 = load i64, ptr %24, align 8
  %139 = add nsw i64 %138, 1
  store i64 %139, ptr %24, align 8
  br label %108, !llvm.loop !72

140:
  %141 = load i64, ptr %21, align 8
  store i64 %141, ptr %27, align 8
  br label %142

142:
  %143 = load i64, ptr %27, align 8
  %144 = load i64, ptr %22, align 8
  %145 = icmp sle i64 %143, %144
  br i1 %145, label %146, label %377

146:
  %147 = load i64, ptr %27, align 8
  %148 = sdiv i64 %147, 32
  store i64 %148, ptr %28, align 8
  %149 = load ptr, ptr %19, align 8
  %150 = load i64, ptr %28, align 8
  %151 = load i64, ptr %27, align 8
  %152 = add nsw i64 %151, 32
  %153 = load i64, ptr %22, align 8
  %154 = icmp sle i64 %152, %153
  %155 = zext i1 %154 to i32
  %156 = sext i32 %155 to i64
  %157 = add nsw i64 %150, %156
  %158 = getelementptr inbounds i32, ptr %149, i64 %157
  %159 = load i32, ptr %158, align 4
  %160 = sext i32 %159 to i64
  store i64 %160, ptr %29, align 8
  %161 = load ptr, ptr %19, align 8
  %162 = load i64, ptr %28, align 8
  %163 = getelementptr inbounds i32, ptr %161, i64 %162
  %164 = load i32, ptr %163, align 4
  %165 = sext i32 %164 to i64
  %166 = load ptr, ptr %15, align 8
  %167 = getelementptr inbounds nuw %struct.attention, ptr %166, i32 0, i32 1
  %168 = load i64, ptr %167, align 8
  %169 = mul nsw i64 %165, %168
  %170 = load i64, ptr %11, align 8
  %171 = add nsw i64 %169, %170
  %172 = load i64, ptr %20, align 8
  %173 = mul nsw i64 %171, %172
  store i64 %173, ptr %30, align 8
  %174 = load i64, ptr %29, align 8
  %175 = load ptr, ptr %15, align 8
  %176 = getelementptr inbounds nuw %struct.attention, ptr %175, i32 0, i32 1
  %177 = load i64, ptr %176, align 8
  %178 = mul nsw i64 %174, %177
  %179 = load i64, ptr %11, align 8
  %180 = add nsw i64 %178, %179
  %181 = load i64, ptr %20, align 8
  %182 = mul nsw i64 %180, %181
  store i64 %182, ptr %31, align 8
  %183 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 0
  %184 = load ptr, ptr %15, align 8
  %185 = getelementptr inbounds nuw %struct.attention, ptr %184, i32 0, i32 5
  %186 = load ptr, ptr %185, align 8
  %187 = load i64, ptr %30, align 8
  %188 = getelementptr inbounds half, ptr %186, i64 %187
  store ptr %188, ptr %183, align 8
  %189 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 1
  %190 = load ptr, ptr %15, align 8
  %191 = getelementptr inbounds nuw %struct.attention, ptr %190, i32 0, i32 6
  %192 = load ptr, ptr %191, align 8
  %193 = load i64, ptr %30, align 8
  %194 = getelementptr inbounds half, ptr %192, i64 %193
  store ptr %194, ptr %189, align 8
  %195 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 2
  %196 = load ptr, ptr %15, align 8
  %197 = getelementptr inbounds nuw %struct.attention, ptr %196, i32 0, i32 5
  %198 = load ptr, ptr %197, align 8
  %199 = load i64, ptr %31, align 8
  %200 = getelementptr inbounds half, ptr %198, i64 %199
  store ptr %200, ptr %195, align 8
  %201 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 3
  %202 = load ptr, ptr %15, align 8
  %203 = getelementptr inbounds nuw %struct.attention, ptr %202, i32 0, i32 6
  %204 = load ptr, ptr %203, align 8
  %205 = load i64, ptr %31, align 8
  %206 = getelementptr inbounds half, ptr %204, i64 %205
  store ptr %206, ptr %201, align 8
  %207 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 4
  %208 = load i64, ptr %16, align 8
  store i64 %208, ptr %207, align 8
  %209 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 5
  %210 = load ptr, ptr %15, align 8
  %211 = getelementptr inbounds nuw %struct.attention, ptr %210, i32 0, i32 3
  %212 = load float, ptr %211, align 8
  store float %212, ptr %209, align 8
  %213 = getelementptr i8, ptr %32, i64 44
  call void @llvm.memset.p0.i64(ptr align 4 %213, i8 0, i64 4, i1 false)
  %214 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 6
  store i64 0, ptr %214, align 8
  %215 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 7
  store i64 31, ptr %215, align 8
  store i32 1, ptr %33, align 4
  %216 = load i64, ptr %9, align 8
  store i64 %216, ptr %34, align 8
  br label %217

217:
  %218 = load i64, ptr %34, align 8
  %219 = load i64, ptr %10, align 8
  %220 = icmp slt i64 %218, %219
  br i1 %220, label %221, label %245

221:
  %222 = load ptr, ptr %8, align 8
  %223 = load i64, ptr %34, align 8
  %224 = call i64 @oldest(ptr noundef %222, i64 noundef %223) #13
  %225 = load i64, ptr %27, align 8
  %226 = icmp sle i64 %224, %225
  br i1 %226, label %227, label %237

227:
  %228 = load ptr, ptr %18, align 8
  %229 = load i64, ptr %34, align 8
  %230 = getelementptr inbounds i32, ptr %228, i64 %229
  %231 = load i32, ptr %230, align 4
  %232 = sext i32 %231 to i64
  %233 = load i64, ptr %27, align 8
  %234 = add nsw i64 %233, 32
  %235 = sub nsw i64 %234, 1
  %236 = icmp sge i64 %232, %235
  br label %237

237:
  %238 = phi i1 [ false, %221 ], [ %236, %227 ]
  %239 = zext i1 %238 to i32
  %240 = load i32, ptr %33, align 4
  %241 = and i32 %240, %239
  store i32 %241, ptr %33, align 4
  br label %242

242:
  %243 = load i64, ptr %34, align 8
  %244 = add nsw i64 %243, 1
  store i64 %244, ptr %34, align 8
  br label %217, !llvm.loop !73

245:
  %246 = load i64, ptr %9, align 8
  store i64 %246, ptr %35, align 8
  br label %247

247:
  %248 = load i64, ptr %35, align 8
  %249 = load i64, ptr %10, align 8
  %250 = icmp slt i64 %248, %249
  br i1 %250, label %251, label %373

251:
  %252 = load i64, ptr %35, align 8
  %253 = load i64, ptr %9, align 8
  %254 = sub nsw i64 %252, %253
  %255 = load i64, ptr %17, align 8
  %256 = mul nsw i64 %254, %255
  store i64 %256, ptr %36, align 8
  %257 = load i32, ptr %33, align 4
  %258 = icmp ne i32 %257, 0
  br i1 %258, label %259, label %265

259:
  %260 = load i64, ptr %10, align 8
  %261 = load i64, ptr %9, align 8
  %262 = sub nsw i64 %260, %261
  %263 = load i64, ptr %17, align 8
  %264 = mul nsw i64 %262, %263
  br label %269

265:
  %266 = load i64, ptr %36, align 8
  %267 = load i64, ptr %17, align 8
  %268 = add nsw i64 %266, %267
  br label %269

269:
  %270 = phi i64 [ %264, %259 ], [ %268, %265 ]
  store i64 %270, ptr %37, align 8
  %271 = load i32, ptr %33, align 4
  %272 = icmp ne i32 %271, 0
  br i1 %272, label %290, label %273

273:
  %274 = load ptr, ptr %8, align 8
  %275 = load i64, ptr %35, align 8
  %276 = call i64 @oldest(ptr noundef %274, i64 noundef %275) #13
  %277 = load i64, ptr %27, align 8
  %278 = sub nsw i64 %276, %277
  %279 = call i64 @larger(i64 noundef %278, i64 noundef 0) #13
  %280 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 6
  store i64 %279, ptr %280, align 8
  %281 = load ptr, ptr %18, align 8
  %282 = load i64, ptr %35, align 8
  %283 = getelementptr inbounds i32, ptr %281, i64 %282
  %284 = load i32, ptr %283, align 4
  %285 = sext i32 %284 to i64
  %286 = load i64, ptr %27, align 8
  %287 = sub nsw i64 %285, %286
  %288 = call i64 @smaller(i64 noundef %287, i64 noundef 31) #13
  %289 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 7
  store i64 %288, ptr %289, align 8
  br label %290

290:
  %291 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 6
  %292 = load i64, ptr %291, align 8
  %293 = getelementptr inbounds nuw %struct.block, ptr %32, i32 0, i32 7
  %294 = load i64, ptr %293, align 8
  %295 = icmp sgt i64 %292, %294
  br i1 %295, label %296, label %297

296:
  br label %370

297:
  br label %298

298:
  %299 = load i64, ptr %36, align 8
  %300 = load i64, ptr %37, align 8
  %301 = icmp slt i64 %299, %300
  br i1 %301, label %302, label %365

302:
  %303 = load i64, ptr %37, align 8
  %304 = load i64, ptr %36, align 8
  %305 = sub nsw i64 %303, %304
  %306 = call i64 @smaller(i64 noundef %305, i64 noundef 4) #13
  store i64 %306, ptr %40, align 8
  %307 = load i64, ptr %36, align 8
  store i64 %307, ptr %41, align 8
  br label %308

308:
  %309 = load i64, ptr %41, align 8
  %310 = load i64, ptr %36, align 8
  %311 = load i64, ptr %40, align 8
  %312 = add nsw i64 %310, %311
  %313 = icmp slt i64 %309, %312
  br i1 %313, label %314, label %356

314:
  %315 = load i64, ptr %9, align 8
  %316 = load i64, ptr %41, align 8
  %317 = load i64, ptr %17, align 8
  %318 = sdiv i64 %316, %317
  %319 = add nsw i64 %315, %318
  store i64 %319, ptr %42, align 8
  %320 = load i64, ptr %11, align 8
  %321 = load i64, ptr %17, align 8
  %322 = mul nsw i64 %320, %321
  %323 = load i64, ptr %41, align 8
  %324 = load i64, ptr %17, align 8
  %325 = srem i64 %323, %324
  %326 = add nsw i64 %322, %325
  store i64 %326, ptr %43, align 8
  %327 = load ptr, ptr %8, align 8
  %328 = getelementptr inbounds nuw %struct.anon.0, ptr %327, i32 0, i32 1
  %329 = load ptr, ptr %328, align 8
  %330 = load i64, ptr %42, align 8
  %331 = load ptr, ptr %15, align 8
  %332 = getelementptr inbounds nuw %struct.attention, ptr %331, i32 0, i32 0
  %333 = load i64, ptr %332, align 8
  %334 = mul nsw i64 %330, %333
  %335 = load i64, ptr %43, align 8
  %336 = add nsw i64 %334, %335
  %337 = load i64, ptr %16, align 8
  %338 = mul nsw i64 %336, %337
  %339 = getelementptr inbounds float, ptr %329, i64 %338
  %340 = load i64, ptr %41, align 8
  %341 = load i64, ptr %36, align 8
  %342 = sub nsw i64 %340, %341
  %343 = getelementptr inbounds [4 x ptr], ptr %38, i64 0, i64 %342
  store ptr %339, ptr %343, align 8
  %344 = load ptr, ptr %13, align 8
  %345 = load i64, ptr %41, align 8
  %346 = load i64, ptr %14, align 8
  %347 = mul nsw i64 %345, %346
  %348 = getelementptr inbounds float, ptr %344, i64 %347
  %349 = load i64, ptr %41, align 8
  %350 = load i64, ptr %36, align 8
  %351 = sub nsw i64 %349, %350
  %352 = getelementptr inbounds [4 x ptr], ptr %39, i64 0, i64 %351
  store ptr %348, ptr %352, align 8
  br label %353

353:
  %354 = load i64, ptr %41, align 8
  %355 = add nsw i64 %354, 1
  store i64 %355, ptr %41, align 8
  br label %308, !llvm.loop !74

356:
  %357 = load i64, ptr %40, align 8
  %358 = getelementptr inbounds [5 x ptr], ptr @BLOCK_FUNCTIONS, i64 0, i64 %357
  %359 = load ptr, ptr %358, align 8
  %360 = getelementptr inbounds [4 x ptr], ptr %38, i64 0, i64 0
  %361 = getelementptr inbounds [4 x ptr], ptr %39, i64 0, i64 0
  call void %359(ptr noundef %32, ptr noundef %360, ptr noundef %361) #13
  br label %362

362:
  %363 = load i64, ptr %36, align 8
  %364 = add nsw i64 %363, 4
  store i64 %364, ptr %36, align 8
  br label %298, !llvm.loop !75

365:
  %366 = load i32, ptr %33, align 4
  %367 = icmp ne i32 %366, 0
  br i1 %367, label %368, label %369

368:
  br label %373

369:
  br label %370

370:
  %371 = load i64, ptr %35, align 8
  %372 = add nsw i64 %371, 1
  store i64 %372, ptr %35, align 8
  br label %247, !llvm.loop !76

373:
  br label %374

374:
  %375 = load i64, ptr %27, align 8
  %376 = add nsw i64 %375, 32
  store i64 %376, ptr %27, align 8
  br label %142, !llvm.loop !77

377:
  ret void
}

define internal void @join(ptr noundef %0, ptr noundef %1, i64 noundef %2) #4 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  %6 = alloca i64, align 8
  %7 = alloca float, align 4
  %8 = alloca float, align 4
  %9 = alloca <8 x float>, align 32
  %10 = alloca <8 x float>, align 32
  %11 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store ptr %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  store float 0xFFF0000000000000, ptr %7, align 4
  %12 = load ptr, ptr %5, align 8
  %13 = getelementptr inbounds float, ptr %12, i64 8
  %14 = load float, ptr %13, align 4
  %15 = fcmp oeq float %14, 0xFFF0000000000000
  br i1 %15, label %16, label %17

16:
  br label %87

17:
  %18 = load ptr, ptr %4, align 8
  %19 = getelementptr inbounds float, ptr %18, i64 8
  %20 = load float, ptr %19, align 4
  %21 = load ptr, ptr %5, align 8
  %22 = getelementptr inbounds float, ptr %21, i64 8
  %23 = load float, ptr %22, align 4
  %24 = fcmp ogt float %20, %23
  br i1 %24, label %25, label %29

25:
  %26 = load ptr, ptr %4, align 8
  %27 = getelementptr inbounds float, ptr %26, i64 8
  %28 = load float, ptr %27, align 4
  br label %33

29:
  %30 = load ptr, ptr %5, align 8
  %31 = getelementptr inbounds float, ptr %30, i64 8
  %32 = load float, ptr %31, align 4
  br label %33

33:
  %34 = phi float [ %28, %25 ], [ %32, %29 ]
  store float %34, ptr %8, align 4
  %35 = load ptr, ptr %4, align 8
  %36 = getelementptr inbounds float, ptr %35, i64 8
  %37 = load float, ptr %36, align 4
  %38 = fcmp oeq float %37, 0xFFF0000000000000
  br i1 %38, label %39, label %40

39:
  br label %49

40:
  %41 = load ptr, ptr %4, align 8
  %42 = getelementptr inbounds float, ptr %41, i64 8
  %43 = load float, ptr %42, align 4
  %44 = load float, ptr %8, align 4
  %45 = fsub float %43, %44
  %46 = insertelement <8 x float> poison, float %45, i64 0
  %47 = shufflevector <8 x float> %46, <8 x float> poison, <8 x i32> zeroinitializer
  %48 = call <8 x float> @exponential(<8 x float> noundef %47) #13
  br label %49

49:
  %50 = phi <8 x float> [ zeroinitializer, %39 ], [ %48, %40 ]
  store <8 x float> %50, ptr %9, align 32
  %51 = load ptr, ptr %5, align 8
  %52 = getelementptr inbounds float, ptr %51, i64 8
  %53 = load float, ptr %52, align 4
  %54 = load float, ptr %8, align 4
  %55 = fsub float %53, %54
  %56 = insertelement <8 x float> poison, float %55, i64 0
  %57 = shufflevector <8 x float> %56, <8 x float> poison, <8 x i32> zeroinitializer
  %58 = call <8 x float> @exponential(<8 x float> noundef %57) #13
  store <8 x float> %58, ptr %10, align 32
  store i64 0, ptr %11, align 8
  br label %59

59:
  %60 = load i64, ptr %11, align 8
  %61 = load i64, ptr %6, align 8
  %62 = add nsw i64 16, %61
  %63 = icmp slt i64 %60, %62
  br i1 %63, label %64, label %83

64:
  %65 = load ptr, ptr %4, align 8
  %66 = load i64, ptr %11, align 8
  %67 = getelementptr inbounds float, ptr %65, i64 %66
  %68 = load ptr, ptr %5, align 8
  %69 = load i64, ptr %11, align 8
  %70 = getelementptr inbounds float, ptr %68, i64 %69
  %71 = call <8 x float> @read(ptr noundef %70) #13
  %72 = load <8 x float>, ptr %10, align 32
  %73 = load ptr, ptr %4, align 8
  %74 = load i64, ptr %11, align 8
  %75 = getelementptr inbounds float, ptr %73, i64 %74
  %76 = call <8 x float> @read(ptr noundef %75) #13
  %77 = load <8 x float>, ptr %9, align 32
  %78 = fmul <8 x float> %76, %77
  %79 = call <8 x float> @fused(<8 x float> noundef %71, <8 x float> noundef %72, <8 x float> noundef %78) #13
  call void @write(ptr noundef %67, <8 x float> noundef %79) #13
  br label %80

80:
  %81 = load i64, ptr %11, align 8
  %82 = add nsw i64 %81, 8
  store i64 %82, ptr %11, align 8
  br label %59, !llvm.loop !78

83:
  %84 = load float, ptr %8, align 4
  %85 = load ptr, ptr %4, align 8
  %86 = getelementptr inbounds float, ptr %85, i64 8
  store float %84, ptr %86, align 4
  br label %87

87:
  ret void
}

define internal void @finish(ptr noundef %0, ptr noundef %1, i64 noundef %2) #3 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  %6 = alloca i64, align 8
  %7 = alloca float, align 4
  %8 = alloca i64, align 8
  store ptr %0, ptr %4, align 8
  store ptr %1, ptr %5, align 8
  store i64 %2, ptr %6, align 8
  %9 = load ptr, ptr %5, align 8
  %10 = call <8 x float> @read(ptr noundef %9) #13
  %11 = call float @sum(<8 x float> noundef %10) #13
  %12 = fdiv float 1.000000e+00, %11
  store float %12, ptr %7, align 4
  store i64 0, ptr %8, align 8
  br label %13

13:
  %14 = load i64, ptr %8, align 8
  %15 = load i64, ptr %6, align 8
  %16 = icmp slt i64 %14, %15
  br i1 %16, label %17, label %33

17:
  %18 = load ptr, ptr %4, align 8
  %19 = load i64, ptr %8, align 8
  %20 = getelementptr inbounds float, ptr %18, i64 %19
  %21 = load ptr, ptr %5, align 8
  %22 = getelementptr inbounds float, ptr %21, i64 16
  %23 = load i64, ptr %8, align 8
  %24 = getelementptr inbounds float, ptr %22, i64 %23
  %25 = call <8 x float> @read(ptr noundef %24) #13
  %26 = load float, ptr %7, align 4
  %27 = insertelement <8 x float> poison, float %26, i64 0
  %28 = shufflevector <8 x float> %27, <8 x float> poison, <8 x i32> zeroinitializer
  %29 = fmul <8 x float> %25, %28
  call void @write(ptr noundef %20, <8 x float> noundef %29) #13
  br label %30

30:
  %31 = load i64, ptr %8, align 8
  %32 = add nsw i64 %31, 8
  store i64 %32, ptr %8, align 8
  br label %13, !llvm.loop !79

33:
  ret void
}

declare void @llvm.stackrestore.p0(ptr) #8

define internal i64 @oldest(ptr noundef %0, i64 noundef %1) #1 {
  %3 = alloca ptr, align 8
  %4 = alloca i64, align 8
  store ptr %0, ptr %3, align 8
  store i64 %1, ptr %4, align 8
  %5 = load ptr, ptr %3, align 8
  %6 = getelementptr inbounds nuw %struct.anon.0, ptr %5, i32 0, i32 2
  %7 = load ptr, ptr %6, align 8
  %8 = load i64, ptr %4, align 8
  %9 = getelementptr inbounds i32, ptr %7, i64 %8
  %10 = load i32, ptr %9, align 4
  %11 = sext i32 %10 to i64
  %12 = load ptr, ptr %3, align 8
  %13 = getelementptr inbounds nuw %struct.anon.0, ptr %12, i32 0, i32 0
  %14 = load ptr, ptr %13, align 8
  %15 = getelementptr inbounds nuw %struct.attention, ptr %14, i32 0, i32 4
  %16 = load i64, ptr %15, align 8
  %17 = sub nsw i64 %11, %16
  %18 = add nsw i64 %17, 1
  %19 = call i64 @larger(i64 noundef %18, i64 noundef 0) #13
  ret i64 %19
}

define internal i64 @larger(i64 noundef %0, i64 noundef %1) #1 {
  %3 = alloca i64, align 8
  %4 = alloca i64, align 8
  store i64 %0, ptr %3, align 8
  store i64 %1, ptr %4, align 8
  %5 = load i64, ptr %3, align 8
  %6 = load i64, ptr %4, align 8
  %7 = icmp sgt i64 %5, %6
  br i1 %7, label %8, label %10

8:
  %9 = load i64, ptr %3, align 8
  br label %12

10:
  %11 = load i64, ptr %4, align 8
  br label %12

12:
  %13 = phi i64 [ %9, %8 ], [ %11, %10 ]
  ret i64 %13
}

define internal void @write(ptr noundef %0, <8 x float> noundef %1) #3 {
  %3 = alloca ptr, align 8
  %4 = alloca <8 x float>, align 32
  store ptr %0, ptr %3, align 8
  store <8 x float> %1, ptr %4, align 32
  %5 = load <8 x float>, ptr %4, align 32
  %6 = load ptr, ptr %3, align 8
  store <8 x float> %5, ptr %6, align 1
  ret void
}

declare void @llvm.memset.p0.i64(ptr writeonly captures(none), i8, i64, i1 immarg) #9

define internal void @add_block_1(ptr noundef %0, ptr noundef %1, ptr noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  store ptr %0, ptr %4, align 8
  store ptr %1, ptr %5, align 8
  store ptr %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load ptr, ptr %5, align 8
  %9 = load ptr, ptr %6, align 8
  call void @add_block(ptr noundef %7, ptr noundef %8, ptr noundef %9, i32 noundef 1) #13
  ret void
}

define internal void @add_block_2(ptr noundef %0, ptr noundef %1, ptr noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  store ptr %0, ptr %4, align 8
  store ptr %1, ptr %5, align 8
  store ptr %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load ptr, ptr %5, align 8
  %9 = load ptr, ptr %6, align 8
  call void @add_block(ptr noundef %7, ptr noundef %8, ptr noundef %9, i32 noundef 2) #13
  ret void
}

define internal void @add_block_3(ptr noundef %0, ptr noundef %1, ptr noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  store ptr %0, ptr %4, align 8
  store ptr %1, ptr %5, align 8
  store ptr %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load ptr, ptr %5, align 8
  %9 = load ptr, ptr %6, align 8
  call void @add_block(ptr noundef %7, ptr noundef %8, ptr noundef %9, i32 noundef 3) #13
  ret void
}

define internal void @add_block_4(ptr noundef %0, ptr noundef %1, ptr noundef %2) #0 {
  %4 = alloca ptr, align 8
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  store ptr %0, ptr %4, align 8
  store ptr %1, ptr %5, align 8
  store ptr %2, ptr %6, align 8
  %7 = load ptr, ptr %4, align 8
  %8 = load ptr, ptr %5, align 8
  %9 = load ptr, ptr %6, align 8
  call void @add_block(ptr noundef %7, ptr noundef %8, ptr noundef %9, i32 noundef 4) #13
  ret void
}

define internal void @add_block(ptr noundef %0, ptr noundef %1, ptr noundef %2, i32 noundef %3) #1 {
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  %7 = alloca ptr, align 8
  %8 = alloca i32, align 4
  %9 = alloca [4 x [32 x float]], align 16
  %10 = alloca [4 x [32 x float]], align 16
  %11 = alloca [4 x float], align 16
  %12 = alloca i32, align 4
  %13 = alloca i32, align 4
  %14 = alloca i64, align 8
  store ptr %0, ptr %5, align 8
  store ptr %1, ptr %6, align 8
  store ptr %2, ptr %7, align 8
  store i32 %3, ptr %8, align 4
  %15 = getelementptr inbounds [4 x [32 x float]], ptr %9, i64 0, i64 0
  %16 = load ptr, ptr %5, align 8
  %17 = load ptr, ptr %6, align 8
  %18 = load i32, ptr %8, align 4
  call void @score(ptr noundef %15, ptr noundef %16, ptr noundef %17, i32 noundef %18) #13
  store i32 0, ptr %12, align 4
  br label %19

19:
  %20 = load i32, ptr %12, align 4
  %21 = load i32, ptr %8, align 4
  %22 = icmp slt i32 %20, %21
  br i1 %22, label %23, label %45

23:
  %24 = load i32, ptr %12, align 4
  %25 = sext i32 %24 to i64
  %26 = getelementptr inbounds [4 x [32 x float]], ptr %10, i64 0, i64 %25
  %27 = getelementptr inbounds [32 x float], ptr %26, i64 0, i64 0
  %28 = load ptr, ptr %7, align 8
  %29 = load i32, ptr %12, align 4
  %30 = sext i32 %29 to i64
  %31 = getelementptr inbounds ptr, ptr %28, i64 %30
  %32 = load ptr, ptr %31, align 8
  %33 = load i32, ptr %12, align 4
  %34 = sext i32 %33 to i64
  %35 = getelementptr inbounds [4 x [32 x float]], ptr %9, i64 0, i64 %34
  %36 = getelementptr inbounds [32 x float], ptr %35, i64 0, i64 0
  %37 = load ptr, ptr %5, align 8
  %38 = call float @weigh(ptr noundef %27, ptr noundef %32, ptr noundef %36, ptr noundef %37) #13
  %39 = load i32, ptr %12, align 4
  %40 = sext i32 %39 to i64
  %41 = getelementptr inbounds [4 x float], ptr %11, i64 0, i64 %40
  store float %38, ptr %41, align 4
  br label %42

42:
  %43 = load i32, ptr %12, align 4
  %44 = add nsw i32 %43, 1
  store i32 %44, ptr %12, align 4
  br label %19, !llvm.loop !80

45:
  %46 = load i32, ptr %8, align 4
  %47 = call i32 @vectors_at_once(i32 noundef %46) #13
  store i32 %47, ptr %13, align 4
  store i64 0, ptr %14, align 8
  br label %48

48:
  %49 = load i64, ptr %14, align 8
  %50 = load i32, ptr %13, align 4
  %51 = mul nsw i32 %50, 8
  %52 = sext i32 %51 to i64
  %53 = add nsw i64 %49, %52
  %54 = load ptr, ptr %5, align 8
  %55 = getelementptr inbounds nuw %struct.block, ptr %54, i32 0, i32 4
  %56 = load i64, ptr %55, align 8
  %57 = icmp sle i64 %53, %56
  br i1 %57, label %58, label %72

58:
  %59 = load ptr, ptr %7, align 8
  %60 = getelementptr inbounds [4 x [32 x float]], ptr %10, i64 0, i64 0
  %61 = getelementptr inbounds [4 x float], ptr %11, i64 0, i64 0
  %62 = load ptr, ptr %5, align 8
  %63 = load i64, ptr %14, align 8
  %64 = load i32, ptr %8, align 4
  %65 = load i32, ptr %13, align 4
  call void @add_vectors(ptr noundef %59, ptr noundef %60, ptr noundef %61, ptr noundef %62, i64 noundef %63, i32 noundef %64, i32 noundef %65) #13
  br label %66

66:
  %67 = load i32, ptr %13, align 4
  %68 = mul nsw i32 %67, 8
  %69 = sext i32 %68 to i64
  %70 = load i64, ptr %14, align 8
  %71 = add nsw i64 %70, %69
  store i64 %71, ptr %14, align 8
  br label %48, !llvm.loop !81

72:
  %73 = load i32, ptr %13, align 4
  %74 = icmp sgt i32 %73, 2
  br i1 %74, label %75, label %88

75:
  %76 = load i64, ptr %14, align 8
  %77 = load ptr, ptr %5, align 8
  %78 = getelementptr inbounds nuw %struct.block, ptr %77, i32 0, i32 4
  %79 = load i64, ptr %78, align 8
  %80 = icmp slt i64 %76, %79
  br i1 %80, label %81, label %88

81:
  %82 = load ptr, ptr %7, align 8
  %83 = getelementptr inbounds [4 x [32 x float]], ptr %10, i64 0, i64 0
  %84 = getelementptr inbounds [4 x float], ptr %11, i64 0, i64 0
  %85 = load ptr, ptr %5, align 8
  %86 = load i64, ptr %14, align 8
  %87 = load i32, ptr %8, align 4
  call void @add_vectors(ptr noundef %82, ptr noundef %83, ptr noundef %84, ptr noundef %85, i64 noundef %86, i32 noundef %87, i32 noundef 2) #13
  br label %88

88:
  ret void
}

define internal void @score(ptr noundef %0, ptr noundef %1, ptr noundef %2, i32 noundef %3) #3 {
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  %7 = alloca ptr, align 8
  %8 = alloca i32, align 4
  %9 = alloca i32, align 4
  %10 = alloca i32, align 4
  %11 = alloca [4 x [4 x <8 x float>]], align 32
  %12 = alloca i32, align 4
  %13 = alloca i32, align 4
  %14 = alloca i64, align 8
  %15 = alloca ptr, align 8
  %16 = alloca [4 x <8 x float>], align 32
  %17 = alloca i32, align 4
  %18 = alloca i32, align 4
  %19 = alloca i32, align 4
  %20 = alloca i32, align 4
  %21 = alloca i32, align 4
  store ptr %0, ptr %5, align 8
  store ptr %1, ptr %6, align 8
  store ptr %2, ptr %7, align 8
  store i32 %3, ptr %8, align 4
  %22 = load i32, ptr %8, align 4
  %23 = call i32 @vectors_at_once(i32 noundef %22) #13
  store i32 %23, ptr %9, align 4
  store i32 0, ptr %10, align 4
  br label %24

24:
  %25 = load i32, ptr %10, align 4
  %26 = icmp slt i32 %25, 32
  br i1 %26, label %27, label %201

27:
  store i32 0, ptr %12, align 4
  br label %28

28:
  %29 = load i32, ptr %12, align 4
  %30 = load i32, ptr %8, align 4
  %31 = icmp slt i32 %29, %30
  br i1 %31, label %32, label %51

32:
  store i32 0, ptr %13, align 4
  br label %33

33:
  %34 = load i32, ptr %13, align 4
  %35 = load i32, ptr %9, align 4
  %36 = icmp slt i32 %34, %35
  br i1 %36, label %37, label %47

37:
  %38 = load i32, ptr %12, align 4
  %39 = sext i32 %38 to i64
  %40 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %11, i64 0, i64 %39
  %41 = load i32, ptr %13, align 4
  %42 = sext i32 %41 to i64
  %43 = getelementptr inbounds [4 x <8 x float>], ptr %40, i64 0, i64 %42
  store <8 x float> zeroinitializer, ptr %43, align 32
  br label %44

44:
  %45 = load i32, ptr %13, align 4
  %46 = add nsw i32 %45, 1
  store i32 %46, ptr %13, align 4
  br label %33, !llvm.loop !82

47:
  br label %48

48:
  %49 = load i32, ptr %12, align 4
  %50 = add nsw i32 %49, 1
  store i32 %50, ptr %12, align 4
  br label %28, !llvm.loop !83

51:
  store i64 0, ptr %14, align 8
  br label %52

52:
  %53 = load i64, ptr %14, align 8
  %54 = load ptr, ptr %6, align 8
  %55 = getelementptr inbounds nuw %struct.block, ptr %54, i32 0, i32 4
  %56 = load i64, ptr %55, align 8
  %57 = icmp slt i64 %53, %56
  br i1 %57, label %58, label %158

58:
  %59 = load ptr, ptr %6, align 8
  %60 = getelementptr inbounds nuw %struct.block, ptr %59, i32 0, i32 0
  %61 = load ptr, ptr %60, align 8
  %62 = load i64, ptr %14, align 8
  %63 = mul nsw i64 %62, 32
  %64 = getelementptr inbounds half, ptr %61, i64 %63
  %65 = load i32, ptr %10, align 4
  %66 = sext i32 %65 to i64
  %67 = getelementptr inbounds half, ptr %64, i64 %66
  store ptr %67, ptr %15, align 8
  %68 = load i32, ptr %10, align 4
  %69 = icmp ne i32 %68, 0
  br i1 %69, label %77, label %70

70:
  %71 = load ptr, ptr %6, align 8
  %72 = getelementptr inbounds nuw %struct.block, ptr %71, i32 0, i32 2
  %73 = load ptr, ptr %72, align 8
  %74 = load i64, ptr %14, align 8
  %75 = mul nsw i64 %74, 32
  %76 = getelementptr inbounds half, ptr %73, i64 %75
  call void @llvm.prefetch.p0(ptr %76, i32 0, i32 2, i32 1)
  br label %77

77:
  %78 = load i32, ptr %10, align 4
  %79 = load i32, ptr %9, align 4
  %80 = mul nsw i32 %79, 8
  %81 = add nsw i32 %78, %80
  %82 = icmp eq i32 %81, 32
  br i1 %82, label %83, label %90

83:
  %84 = load ptr, ptr %6, align 8
  %85 = getelementptr inbounds nuw %struct.block, ptr %84, i32 0, i32 3
  %86 = load ptr, ptr %85, align 8
  %87 = load i64, ptr %14, align 8
  %88 = mul nsw i64 %87, 32
  %89 = getelementptr inbounds half, ptr %86, i64 %88
  call void @llvm.prefetch.p0(ptr %89, i32 0, i32 2, i32 1)
  br label %90

90:
  store i32 0, ptr %17, align 4
  br label %91

91:
  %92 = load i32, ptr %17, align 4
  %93 = load i32, ptr %9, align 4
  %94 = icmp slt i32 %92, %93
  br i1 %94, label %95, label %108

95:
  %96 = load ptr, ptr %15, align 8
  %97 = load i32, ptr %17, align 4
  %98 = mul nsw i32 %97, 8
  %99 = sext i32 %98 to i64
  %100 = getelementptr inbounds half, ptr %96, i64 %99
  %101 = call <8 x float> @read_wide_halves(ptr noundef %100) #13
  %102 = load i32, ptr %17, align 4
  %103 = sext i32 %102 to i64
  %104 = getelementptr inbounds [4 x <8 x float>], ptr %16, i64 0, i64 %103
  store <8 x float> %101, ptr %104, align 32
  br label %105

105:
  %106 = load i32, ptr %17, align 4
  %107 = add nsw i32 %106, 1
  store i32 %107, ptr %17, align 4
  br label %91, !llvm.loop !84

108:
  store i32 0, ptr %18, align 4
  br label %109

109:
  %110 = load i32, ptr %18, align 4
  %111 = load i32, ptr %8, align 4
  %112 = icmp slt i32 %110, %111
  br i1 %112, label %113, label %154

113:
  store i32 0, ptr %19, align 4
  br label %114

114:
  %115 = load i32, ptr %19, align 4
  %116 = load i32, ptr %9, align 4
  %117 = icmp slt i32 %115, %116
  br i1 %117, label %118, label %150

118:
  %119 = load ptr, ptr %7, align 8
  %120 = load i32, ptr %18, align 4
  %121 = sext i32 %120 to i64
  %122 = getelementptr inbounds ptr, ptr %119, i64 %121
  %123 = load ptr, ptr %122, align 8
  %124 = load i64, ptr %14, align 8
  %125 = getelementptr inbounds float, ptr %123, i64 %124
  %126 = load float, ptr %125, align 4
  %127 = insertelement <8 x float> poison, float %126, i64 0
  %128 = shufflevector <8 x float> %127, <8 x float> poison, <8 x i32> zeroinitializer
  %129 = load i32, ptr %19, align 4
  %130 = sext i32 %129 to i64
  %131 = getelementptr inbounds [4 x <8 x float>], ptr %16, i64 0, i64 %130
  %132 = load <8 x float>, ptr %131, align 32
  %133 = load i32, ptr %18, align 4
  %134 = sext i32 %133 to i64
  %135 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %11, i64 0, i64 %134
  %136 = load i32, ptr %19, align 4
  %137 = sext i32 %136 to i64
  %138 = getelementptr inbounds [4 x <8 x float>], ptr %135, i64 0, i64 %137
  %139 = load <8 x float>, ptr %138, align 32
  %140 = call <8 x float> @llvm.fma.v8f32(<8 x float> %128, <8 x float> %132, <8 x float> %139)
  %141 = load i32, ptr %18, align 4
  %142 = sext i32 %141 to i64
  %143 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %11, i64 0, i64 %142
  %144 = load i32, ptr %19, align 4
  %145 = sext i32 %144 to i64
  %146 = getelementptr inbounds [4 x <8 x float>], ptr %143, i64 0, i64 %145
  store <8 x float> %140, ptr %146, align 32
  br label %147

147:
  %148 = load i32, ptr %19, align 4
  %149 = add nsw i32 %148, 1
  store i32 %149, ptr %19, align 4
  br label %114, !llvm.loop !85

150:
  br label %151

151:
  %152 = load i32, ptr %18, align 4
  %153 = add nsw i32 %152, 1
  store i32 %153, ptr %18, align 4
  br label %109, !llvm.loop !86

154:
  br label %155

155:
  %156 = load i64, ptr %14, align 8
  %157 = add nsw i64 %156, 1
  store i64 %157, ptr %14, align 8
  br label %52, !llvm.loop !87

158:
  store i32 0, ptr %20, align 4
  br label %159

159:
  %160 = load i32, ptr %20, align 4
  %161 = load i32, ptr %8, align 4
  %162 = icmp slt i32 %160, %161
  br i1 %162, label %163, label %195

163:
  store i32 0, ptr %21, align 4
  br label %164

164:
  %165 = load i32, ptr %21, align 4
  %166 = load i32, ptr %9, align 4
  %167 = icmp slt i32 %165, %166
  br i1 %167, label %168, label %191

168:
  %169 = load i32, ptr %20, align 4
  %170 = sext i32 %169 to i64
  %171 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %11, i64 0, i64 %170
  %172 = load i32, ptr %21, align 4
  %173 = sext i32 %172 to i64
  %174 = getelementptr inbounds [4 x <8 x float>], ptr %171, i64 0, i64 %173
  %175 = load <8 x float>, ptr %174, align 32
  %176 = load ptr, ptr %5, align 8
  %177 = load i32, ptr %20, align 4
  %178 = sext i32 %177 to i64
  %179 = getelementptr inbounds [32 x float], ptr %176, i64 %178
  %180 = getelementptr inbounds [32 x float], ptr %179, i64 0, i64 0
  %181 = load i32, ptr %10, align 4
  %182 = sext i32 %181 to i64
  %183 = getelementptr inbounds float, ptr %180, i64 %182
  %184 = load i32, ptr %21, align 4
  %185 = mul nsw i32 %184, 8
  %186 = sext i32 %185 to i64
  %187 = getelementptr inbounds float, ptr %183, i64 %186
  store <8 x float> %175, ptr %187, align 1
  br label %188

188:
  %189 = load i32, ptr %21, align 4
  %190 = add nsw i32 %189, 1
  store i32 %190, ptr %21, align 4
  br label %164, !llvm.loop !88

191:
  br label %192

192:
  %193 = load i32, ptr %20, align 4
  %194 = add nsw i32 %193, 1
  store i32 %194, ptr %20, align 4
  br label %159, !llvm.loop !89

195:
  br label %196

196:
  %197 = load i32, ptr %9, align 4
  %198 = mul nsw i32 %197, 8
  %199 = load i32, ptr %10, align 4
  %200 = add nsw i32 %199, %198
  store i32 %200, ptr %10, align 4
  br label %24, !llvm.loop !90

201:
  ret void
}

define internal float @weigh(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr noundef %3) #3 {
  %5 = alloca ptr, align 8
  %6 = alloca ptr, align 8
  %7 = alloca ptr, align 8
  %8 = alloca ptr, align 8
  %9 = alloca [4 x <8 x float>], align 32
  %10 = alloca <8 x float>, align 32
  %11 = alloca [4 x <8 x i32>], align 32
  %12 = alloca i32, align 4
  %13 = alloca <8 x i32>, align 32
  %14 = alloca <8 x i32>, align 32
  %15 = alloca <8 x float>, align 32
  %16 = alloca i32, align 4
  %17 = alloca float, align 4
  %18 = alloca float, align 4
  %19 = alloca float, align 4
  %20 = alloca <8 x float>, align 32
  %21 = alloca <8 x float>, align 32
  %22 = alloca i32, align 4
  %23 = alloca <8 x float>, align 32
  store ptr %0, ptr %5, align 8
  store ptr %1, ptr %6, align 8
  store ptr %2, ptr %7, align 8
  store ptr %3, ptr %8, align 8
  store i32 0, ptr %12, align 4
  br label %24

24:
  %25 = load i32, ptr %12, align 4
  %26 = icmp slt i32 %25, 4
  br i1 %26, label %27, label %81

27:
  store <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, ptr %14, align 32
  %28 = load <8 x i32>, ptr %14, align 32
  %29 = load i32, ptr %12, align 4
  %30 = mul nsw i32 %29, 8
  %31 = insertelement <8 x i32> poison, i32 %30, i64 0
  %32 = shufflevector <8 x i32> %31, <8 x i32> poison, <8 x i32> zeroinitializer
  %33 = add <8 x i32> %28, %32
  store <8 x i32> %33, ptr %13, align 32
  %34 = load <8 x i32>, ptr %13, align 32
  %35 = load ptr, ptr %8, align 8
  %36 = getelementptr inbounds nuw %struct.block, ptr %35, i32 0, i32 6
  %37 = load i64, ptr %36, align 8
  %38 = trunc i64 %37 to i32
  %39 = insertelement <8 x i32> poison, i32 %38, i64 0
  %40 = shufflevector <8 x i32> %39, <8 x i32> poison, <8 x i32> zeroinitializer
  %41 = icmp sge <8 x i32> %34, %40
  %42 = sext <8 x i1> %41 to <8 x i32>
  %43 = load <8 x i32>, ptr %13, align 32
  %44 = load ptr, ptr %8, align 8
  %45 = getelementptr inbounds nuw %struct.block, ptr %44, i32 0, i32 7
  %46 = load i64, ptr %45, align 8
  %47 = trunc i64 %46 to i32
  %48 = insertelement <8 x i32> poison, i32 %47, i64 0
  %49 = shufflevector <8 x i32> %48, <8 x i32> poison, <8 x i32> zeroinitializer
  %50 = icmp sle <8 x i32> %43, %49
  %51 = sext <8 x i1> %50 to <8 x i32>
  %52 = and <8 x i32> %42, %51
  %53 = load i32, ptr %12, align 4
  %54 = sext i32 %53 to i64
  %55 = getelementptr inbounds [4 x <8 x i32>], ptr %11, i64 0, i64 %54
  store <8 x i32> %52, ptr %55, align 32
  %56 = load ptr, ptr %7, align 8
  %57 = load i32, ptr %12, align 4
  %58 = mul nsw i32 %57, 8
  %59 = sext i32 %58 to i64
  %60 = getelementptr inbounds float, ptr %56, i64 %59
  %61 = call <8 x float> @read(ptr noundef %60) #13
  %62 = load ptr, ptr %8, align 8
  %63 = getelementptr inbounds nuw %struct.block, ptr %62, i32 0, i32 5
  %64 = load float, ptr %63, align 8
  %65 = insertelement <8 x float> poison, float %64, i64 0
  %66 = shufflevector <8 x float> %65, <8 x float> poison, <8 x i32> zeroinitializer
  %67 = fmul <8 x float> %61, %66
  store <8 x float> %67, ptr %15, align 32
  %68 = load i32, ptr %12, align 4
  %69 = sext i32 %68 to i64
  %70 = getelementptr inbounds [4 x <8 x i32>], ptr %11, i64 0, i64 %69
  %71 = load <8 x i32>, ptr %70, align 32
  %72 = load <8 x float>, ptr %15, align 32
  %73 = icmp slt <8 x i32> %71, zeroinitializer
  %74 = select <8 x i1> %73, <8 x float> %72, <8 x float> splat (float 0xFFF0000000000000)
  %75 = load i32, ptr %12, align 4
  %76 = sext i32 %75 to i64
  %77 = getelementptr inbounds [4 x <8 x float>], ptr %9, i64 0, i64 %76
  store <8 x float> %74, ptr %77, align 32
  br label %78

78:
  %79 = load i32, ptr %12, align 4
  %80 = add nsw i32 %79, 1
  store i32 %80, ptr %12, align 4
  br label %24, !llvm.loop !91

81:
  %82 = getelementptr inbounds [4 x <8 x float>], ptr %9, i64 0, i64 0
  %83 = load <8 x float>, ptr %82, align 32
  store <8 x float> %83, ptr %10, align 32
  store i32 1, ptr %16, align 4
  br label %84

84:
  %85 = load i32, ptr %16, align 4
  %86 = icmp slt i32 %85, 4
  br i1 %86, label %87, label %105

87:
  %88 = load i32, ptr %16, align 4
  %89 = sext i32 %88 to i64
  %90 = getelementptr inbounds [4 x <8 x float>], ptr %9, i64 0, i64 %89
  %91 = load <8 x float>, ptr %90, align 32
  %92 = load <8 x float>, ptr %10, align 32
  %93 = fcmp ogt <8 x float> %91, %92
  %94 = sext <8 x i1> %93 to <8 x i32>
  %95 = load i32, ptr %16, align 4
  %96 = sext i32 %95 to i64
  %97 = getelementptr inbounds [4 x <8 x float>], ptr %9, i64 0, i64 %96
  %98 = load <8 x float>, ptr %97, align 32
  %99 = load <8 x float>, ptr %10, align 32
  %100 = icmp slt <8 x i32> %94, zeroinitializer
  %101 = select <8 x i1> %100, <8 x float> %98, <8 x float> %99
  store <8 x float> %101, ptr %10, align 32
  br label %102

102:
  %103 = load i32, ptr %16, align 4
  %104 = add nsw i32 %103, 1
  store i32 %104, ptr %16, align 4
  br label %84, !llvm.loop !92

105:
  %106 = load ptr, ptr %6, align 8
  %107 = getelementptr inbounds float, ptr %106, i64 8
  %108 = load float, ptr %107, align 4
  store float %108, ptr %17, align 4
  %109 = load <8 x float>, ptr %10, align 32
  %110 = call float @llvm.vector.reduce.fmax.v8f32(<8 x float> %109)
  store float %110, ptr %18, align 4
  %111 = load float, ptr %18, align 4
  %112 = load float, ptr %17, align 4
  %113 = fcmp ogt float %111, %112
  br i1 %113, label %114, label %116

114:
  %115 = load float, ptr %18, align 4
  br label %118

116:
  %117 = load float, ptr %17, align 4
  br label %118

118:
  %119 = phi float [ %115, %114 ], [ %117, %116 ]
  %120 = load ptr, ptr %6, align 8
  %121 = getelementptr inbounds float, ptr %120, i64 8
  store float %119, ptr %121, align 4
  store float %119, ptr %19, align 4
  %122 = load float, ptr %17, align 4
  %123 = load float, ptr %19, align 4
  %124 = fsub float %122, %123
  %125 = insertelement <8 x float> poison, float %124, i64 0
  %126 = shufflevector <8 x float> %125, <8 x float> poison, <8 x i32> zeroinitializer
  %127 = call <8 x float> @exponential(<8 x float> noundef %126) #13
  store <8 x float> %127, ptr %20, align 32
  %128 = load ptr, ptr %6, align 8
  %129 = call <8 x float> @read(ptr noundef %128) #13
  %130 = load <8 x float>, ptr %20, align 32
  %131 = fmul <8 x float> %129, %130
  store <8 x float> %131, ptr %21, align 32
  store i32 0, ptr %22, align 4
  br label %132

132:
  %133 = load i32, ptr %22, align 4
  %134 = icmp slt i32 %133, 4
  br i1 %134, label %135, label %164

135:
  %136 = load i32, ptr %22, align 4
  %137 = sext i32 %136 to i64
  %138 = getelementptr inbounds [4 x <8 x float>], ptr %9, i64 0, i64 %137
  %139 = load <8 x float>, ptr %138, align 32
  %140 = load float, ptr %19, align 4
  %141 = insertelement <8 x float> poison, float %140, i64 0
  %142 = shufflevector <8 x float> %141, <8 x float> poison, <8 x i32> zeroinitializer
  %143 = fsub <8 x float> %139, %142
  %144 = call <8 x float> @exponential(<8 x float> noundef %143) #13
  store <8 x float> %144, ptr %23, align 32
  %145 = load i32, ptr %22, align 4
  %146 = sext i32 %145 to i64
  %147 = getelementptr inbounds [4 x <8 x i32>], ptr %11, i64 0, i64 %146
  %148 = load <8 x i32>, ptr %147, align 32
  %149 = load <8 x float>, ptr %23, align 32
  %150 = icmp slt <8 x i32> %148, zeroinitializer
  %151 = select <8 x i1> %150, <8 x float> %149, <8 x float> zeroinitializer
  store <8 x float> %151, ptr %23, align 32
  %152 = load ptr, ptr %5, align 8
  %153 = load i32, ptr %22, align 4
  %154 = mul nsw i32 %153, 8
  %155 = sext i32 %154 to i64
  %156 = getelementptr inbounds float, ptr %152, i64 %155
  %157 = load <8 x float>, ptr %23, align 32
  call void @write(ptr noundef %156, <8 x float> noundef %157) #13
  %158 = load <8 x float>, ptr %23, align 32
  %159 = load <8 x float>, ptr %21, align 32
  %160 = fadd <8 x float> %159, %158
  store <8 x float> %160, ptr %21, align 32
  br label %161

161:
  %162 = load i32, ptr %22, align 4
  %163 = add nsw i32 %162, 1
  store i32 %163, ptr %22, align 4
  br label %132, !llvm.loop !93

164:
  %165 = load ptr, ptr %6, align 8
  %166 = load <8 x float>, ptr %21, align 32
  call void @write(ptr noundef %165, <8 x float> noundef %166) #13
  %167 = load <8 x float>, ptr %20, align 32
  %168 = extractelement <8 x float> %167, i32 0
  ret float %168
}

define internal i32 @vectors_at_once(i32 noundef %0) #1 {
  %2 = alloca i32, align 4
  store i32 %0, ptr %2, align 4
  %3 = load i32, ptr %2, align 4
  %4 = icmp sle i32 %3, 2
  %5 = zext i1 %4 to i64
  %6 = select i1 %4, i32 4, i32 2
  ret i32 %6
}

define internal void @add_vectors(ptr noundef %0, ptr noundef %1, ptr noundef %2, ptr noundef %3, i64 noundef %4, i32 noundef %5, i32 noundef %6) #3 {
  %8 = alloca ptr, align 8
  %9 = alloca ptr, align 8
  %10 = alloca ptr, align 8
  %11 = alloca ptr, align 8
  %12 = alloca i64, align 8
  %13 = alloca i32, align 4
  %14 = alloca i32, align 4
  %15 = alloca [4 x [4 x <8 x float>]], align 32
  %16 = alloca i32, align 4
  %17 = alloca i32, align 4
  %18 = alloca ptr, align 8
  %19 = alloca i64, align 8
  %20 = alloca ptr, align 8
  %21 = alloca [4 x <8 x float>], align 32
  %22 = alloca i32, align 4
  %23 = alloca i32, align 4
  %24 = alloca i32, align 4
  %25 = alloca i32, align 4
  %26 = alloca i32, align 4
  store ptr %0, ptr %8, align 8
  store ptr %1, ptr %9, align 8
  store ptr %2, ptr %10, align 8
  store ptr %3, ptr %11, align 8
  store i64 %4, ptr %12, align 8
  store i32 %5, ptr %13, align 4
  store i32 %6, ptr %14, align 4
  store i32 0, ptr %16, align 4
  br label %27

27:
  %28 = load i32, ptr %16, align 4
  %29 = load i32, ptr %13, align 4
  %30 = icmp slt i32 %28, %29
  br i1 %30, label %31, label %72

31:
  store i32 0, ptr %17, align 4
  br label %32

32:
  %33 = load i32, ptr %17, align 4
  %34 = load i32, ptr %14, align 4
  %35 = icmp slt i32 %33, %34
  br i1 %35, label %36, label %68

36:
  %37 = load ptr, ptr %8, align 8
  %38 = load i32, ptr %16, align 4
  %39 = sext i32 %38 to i64
  %40 = getelementptr inbounds ptr, ptr %37, i64 %39
  %41 = load ptr, ptr %40, align 8
  %42 = getelementptr inbounds float, ptr %41, i64 16
  %43 = load i64, ptr %12, align 8
  %44 = getelementptr inbounds float, ptr %42, i64 %43
  %45 = load i32, ptr %17, align 4
  %46 = mul nsw i32 %45, 8
  %47 = sext i32 %46 to i64
  %48 = getelementptr inbounds float, ptr %44, i64 %47
  store ptr %48, ptr %18, align 8
  %49 = load ptr, ptr %18, align 8
  %50 = load <8 x float>, ptr %49, align 1
  %51 = load ptr, ptr %10, align 8
  %52 = load i32, ptr %16, align 4
  %53 = sext i32 %52 to i64
  %54 = getelementptr inbounds float, ptr %51, i64 %53
  %55 = load float, ptr %54, align 4
  %56 = insertelement <8 x float> poison, float %55, i64 0
  %57 = shufflevector <8 x float> %56, <8 x float> poison, <8 x i32> zeroinitializer
  %58 = fmul <8 x float> %50, %57
  %59 = load i32, ptr %16, align 4
  %60 = sext i32 %59 to i64
  %61 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %15, i64 0, i64 %60
  %62 = load i32, ptr %17, align 4
  %63 = sext i32 %62 to i64
  %64 = getelementptr inbounds [4 x <8 x float>], ptr %61, i64 0, i64 %63
  store <8 x float> %58, ptr %64, align 32
  br label %65

65:
  %66 = load i32, ptr %17, align 4
  %67 = add nsw i32 %66, 1
  store i32 %67, ptr %17, align 4
  br label %32, !llvm.loop !94

68:
  br label %69

69:
  %70 = load i32, ptr %16, align 4
  %71 = add nsw i32 %70, 1
  store i32 %71, ptr %16, align 4
  br label %27, !llvm.loop !95

72:
  %73 = load ptr, ptr %11, align 8
  %74 = getelementptr inbounds nuw %struct.block, ptr %73, i32 0, i32 6
  %75 = load i64, ptr %74, align 8
  store i64 %75, ptr %19, align 8
  br label %76

76:
  %77 = load i64, ptr %19, align 8
  %78 = load ptr, ptr %11, align 8
  %79 = getelementptr inbounds nuw %struct.block, ptr %78, i32 0, i32 7
  %80 = load i64, ptr %79, align 8
  %81 = icmp sle i64 %77, %80
  br i1 %81, label %82, label %160

82:
  %83 = load ptr, ptr %11, align 8
  %84 = getelementptr inbounds nuw %struct.block, ptr %83, i32 0, i32 1
  %85 = load ptr, ptr %84, align 8
  %86 = load i64, ptr %19, align 8
  %87 = load ptr, ptr %11, align 8
  %88 = getelementptr inbounds nuw %struct.block, ptr %87, i32 0, i32 4
  %89 = load i64, ptr %88, align 8
  %90 = mul nsw i64 %86, %89
  %91 = getelementptr inbounds half, ptr %85, i64 %90
  %92 = load i64, ptr %12, align 8
  %93 = getelementptr inbounds half, ptr %91, i64 %92
  store ptr %93, ptr %20, align 8
  store i32 0, ptr %22, align 4
  br label %94

94:
  %95 = load i32, ptr %22, align 4
  %96 = load i32, ptr %14, align 4
  %97 = icmp slt i32 %95, %96
  br i1 %97, label %98, label %111

98:
  %99 = load ptr, ptr %20, align 8
  %100 = load i32, ptr %22, align 4
  %101 = mul nsw i32 %100, 8
  %102 = sext i32 %101 to i64
  %103 = getelementptr inbounds half, ptr %99, i64 %102
  %104 = call <8 x float> @read_wide_halves(ptr noundef %103) #13
  %105 = load i32, ptr %22, align 4
  %106 = sext i32 %105 to i64
  %107 = getelementptr inbounds [4 x <8 x float>], ptr %21, i64 0, i64 %106
  store <8 x float> %104, ptr %107, align 32
  br label %108

108:
  %109 = load i32, ptr %22, align 4
  %110 = add nsw i32 %109, 1
  store i32 %110, ptr %22, align 4
  br label %94, !llvm.loop !96

111:
  store i32 0, ptr %23, align 4
  br label %112

112:
  %113 = load i32, ptr %23, align 4
  %114 = load i32, ptr %13, align 4
  %115 = icmp slt i32 %113, %114
  br i1 %115, label %116, label %156

116:
  store i32 0, ptr %24, align 4
  br label %117

117:
  %118 = load i32, ptr %24, align 4
  %119 = load i32, ptr %14, align 4
  %120 = icmp slt i32 %118, %119
  br i1 %120, label %121, label %152

121:
  %122 = load ptr, ptr %9, align 8
  %123 = load i32, ptr %23, align 4
  %124 = sext i32 %123 to i64
  %125 = getelementptr inbounds [32 x float], ptr %122, i64 %124
  %126 = load i64, ptr %19, align 8
  %127 = getelementptr inbounds [32 x float], ptr %125, i64 0, i64 %126
  %128 = load float, ptr %127, align 4
  %129 = insertelement <8 x float> poison, float %128, i64 0
  %130 = shufflevector <8 x float> %129, <8 x float> poison, <8 x i32> zeroinitializer
  %131 = load i32, ptr %24, align 4
  %132 = sext i32 %131 to i64
  %133 = getelementptr inbounds [4 x <8 x float>], ptr %21, i64 0, i64 %132
  %134 = load <8 x float>, ptr %133, align 32
  %135 = load i32, ptr %23, align 4
  %136 = sext i32 %135 to i64
  %137 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %15, i64 0, i64 %136
  %138 = load i32, ptr %24, align 4
  %139 = sext i32 %138 to i64
  %140 = getelementptr inbounds [4 x <8 x float>], ptr %137, i64 0, i64 %139
  %141 = load <8 x float>, ptr %140, align 32
  %142 = call <8 x float> @llvm.fma.v8f32(<8 x float> %130, <8 x float> %134, <8 x float> %141)
  %143 = load i32, ptr %23, align 4
  %144 = sext i32 %143 to i64
  %145 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %15, i64 0, i64 %144
  %146 = load i32, ptr %24, align 4
  %147 = sext i32 %146 to i64
  %148 = getelementptr inbounds [4 x <8 x float>], ptr %145, i64 0, i64 %147
  store <8 x float> %142, ptr %148, align 32
  br label %149

149:
  %150 = load i32, ptr %24, align 4
  %151 = add nsw i32 %150, 1
  store i32 %151, ptr %24, align 4
  br label %117, !llvm.loop !97

152:
  br label %153

153:
  %154 = load i32, ptr %23, align 4
  %155 = add nsw i32 %154, 1
  store i32 %155, ptr %23, align 4
  br label %112, !llvm.loop !98

156:
  br label %157

157:
  %158 = load i64, ptr %19, align 8
  %159 = add nsw i64 %158, 1
  store i64 %159, ptr %19, align 8
  br label %76, !llvm.loop !99

160:
  store i32 0, ptr %25, align 4
  br label %161

161:
  %162 = load i32, ptr %25, align 4
  %163 = load i32, ptr %13, align 4
  %164 = icmp slt i32 %162, %163
  br i1 %164, label %165, label %197

165:
  store i32 0, ptr %26, align 4
  br label %166

166:
  %167 = load i32, ptr %26, align 4
  %168 = load i32, ptr %14, align 4
  %169 = icmp slt i32 %167, %168
  br i1 %169, label %170, label %193

170:
  %171 = load i32, ptr %25, align 4
  %172 = sext i32 %171 to i64
  %173 = getelementptr inbounds [4 x [4 x <8 x float>]], ptr %15, i64 0, i64 %172
  %174 = load i32, ptr %26, align 4
  %175 = sext i32 %174 to i64
  %176 = getelementptr inbounds [4 x <8 x float>], ptr %173, i64 0, i64 %175
  %177 = load <8 x float>, ptr %176, align 32
  %178 = load ptr, ptr %8, align 8
  %179 = load i32, ptr %25, align 4
  %180 = sext i32 %179 to i64
  %181 = getelementptr inbounds ptr, ptr %178, i64 %180
  %182 = load ptr, ptr %181, align 8
  %183 = getelementptr inbounds float, ptr %182, i64 16
  %184 = load i64, ptr %12, align 8
  %185 = getelementptr inbounds float, ptr %183, i64 %184
  %186 = load i32, ptr %26, align 4
  %187 = mul nsw i32 %186, 8
  %188 = sext i32 %187 to i64
  %189 = getelementptr inbounds float, ptr %185, i64 %188
  store <8 x float> %177, ptr %189, align 1
  br label %190

190:
  %191 = load i32, ptr %26, align 4
  %192 = add nsw i32 %191, 1
  store i32 %192, ptr %26, align 4
  br label %166, !llvm.loop !100

193:
  br label %194

194:
  %195 = load i32, ptr %25, align 4
  %196 = add nsw i32 %195, 1
  store i32 %196, ptr %25, align 4
  br label %161, !llvm.loop !101

197:
  ret void
}

define internal <8 x float> @read(ptr noundef %0) #3 {
  %2 = alloca ptr, align 8
  store ptr %0, ptr %2, align 8
  %3 = load ptr, ptr %2, align 8
  %4 = load <8 x float>, ptr %3, align 1
  ret <8 x float> %4
}

declare float @llvm.vector.reduce.fmax.v8f32(<8 x float>) #10

define internal <8 x float> @exponential(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  %3 = alloca float, align 4
  %4 = alloca float, align 4
  %5 = alloca <8 x float>, align 32
  %6 = alloca <8 x float>, align 32
  %7 = alloca <8 x float>, align 32
  %8 = alloca i32, align 4
  store <8 x float> %0, ptr %2, align 32
  store float 0x3FE6300000000000, ptr %3, align 4
  store float 0xBF2BD01060000000, ptr %4, align 4
  %9 = load <8 x float>, ptr %2, align 32
  %10 = fcmp ogt <8 x float> %9, splat (float -8.700000e+01)
  %11 = sext <8 x i1> %10 to <8 x i32>
  %12 = load <8 x float>, ptr %2, align 32
  %13 = icmp slt <8 x i32> %11, zeroinitializer
  %14 = select <8 x i1> %13, <8 x float> %12, <8 x float> splat (float -8.700000e+01)
  store <8 x float> %14, ptr %2, align 32
  %15 = load <8 x float>, ptr %2, align 32
  %16 = fcmp olt <8 x float> %15, splat (float 8.800000e+01)
  %17 = sext <8 x i1> %16 to <8 x i32>
  %18 = load <8 x float>, ptr %2, align 32
  %19 = icmp slt <8 x i32> %17, zeroinitializer
  %20 = select <8 x i1> %19, <8 x float> %18, <8 x float> splat (float 8.800000e+01)
  store <8 x float> %20, ptr %2, align 32
  %21 = load <8 x float>, ptr %2, align 32
  %22 = fmul <8 x float> %21, splat (float 0x3FF7154760000000)
  %23 = call <8 x float> @llvm.rint.v8f32(<8 x float> %22)
  store <8 x float> %23, ptr %5, align 32
  %24 = load <8 x float>, ptr %5, align 32
  %25 = load <8 x float>, ptr %5, align 32
  %26 = load <8 x float>, ptr %2, align 32
  %27 = call <8 x float> @fused(<8 x float> noundef %25, <8 x float> noundef splat (float 0xBFE6300000000000), <8 x float> noundef %26) #13
  %28 = call <8 x float> @fused(<8 x float> noundef %24, <8 x float> noundef splat (float 0x3F2BD01060000000), <8 x float> noundef %27) #13
  store <8 x float> %28, ptr %6, align 32
  store <8 x float> splat (float 0x3F56C16C20000000), ptr %7, align 32
  store i32 0, ptr %8, align 4
  br label %29

29:
  %30 = load i32, ptr %8, align 4
  %31 = icmp slt i32 %30, 6
  br i1 %31, label %32, label %45

32:
  %33 = load <8 x float>, ptr %7, align 32
  %34 = load <8 x float>, ptr %6, align 32
  %35 = load i32, ptr %8, align 4
  %36 = sext i32 %35 to i64
  %37 = getelementptr inbounds [6 x float], ptr @exponential.series, i64 0, i64 %36
  %38 = load float, ptr %37, align 4
  %39 = insertelement <8 x float> poison, float %38, i64 0
  %40 = shufflevector <8 x float> %39, <8 x float> poison, <8 x i32> zeroinitializer
  %41 = call <8 x float> @fused(<8 x float> noundef %33, <8 x float> noundef %34, <8 x float> noundef %40) #13
  store <8 x float> %41, ptr %7, align 32
  br label %42

42:
  %43 = load i32, ptr %8, align 4
  %44 = add nsw i32 %43, 1
  store i32 %44, ptr %8, align 4
  br label %29, !llvm.loop !102

45:
  %46 = load <8 x float>, ptr %7, align 32
  %47 = load <8 x float>, ptr %5, align 32
  %48 = fptosi <8 x float> %47 to <8 x i32>
  %49 = add <8 x i32> %48, splat (i32 127)
  %50 = shl <8 x i32> %49, splat (i32 23)
  %51 = bitcast <8 x i32> %50 to <8 x float>
  %52 = fmul <8 x float> %46, %51
  ret <8 x float> %52
}

declare <8 x float> @llvm.rint.v8f32(<8 x float>) #6

define internal <8 x float> @fused(<8 x float> noundef %0, <8 x float> noundef %1, <8 x float> noundef %2) #3 {
  %4 = alloca <8 x float>, align 32
  %5 = alloca <8 x float>, align 32
  %6 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %4, align 32
  store <8 x float> %1, ptr %5, align 32
  store <8 x float> %2, ptr %6, align 32
  %7 = load <8 x float>, ptr %4, align 32
  %8 = load <8 x float>, ptr %5, align 32
  %9 = load <8 x float>, ptr %6, align 32
  %10 = call <8 x float> @llvm.fma.v8f32(<8 x float> %7, <8 x float> %8, <8 x float> %9)
  ret <8 x float> %10
}

define internal float @sum(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  %3 = alloca float, align 4
  %4 = alloca i32, align 4
  store <8 x float> %0, ptr %2, align 32
  store float 0.000000e+00, ptr %3, align 4
  store i32 0, ptr %4, align 4
  br label %5

5:
  %6 = load i32, ptr %4, align 4
  %7 = icmp slt i32 %6, 8
  br i1 %7, label %8, label %17

8:
  %9 = load <8 x float>, ptr %2, align 32
  %10 = load i32, ptr %4, align 4
  %11 = extractelement <8 x float> %9, i32 %10
  %12 = load float, ptr %3, align 4
  %13 = fadd float %12, %11
  store float %13, ptr %3, align 4
  br label %14

14:
  %15 = load i32, ptr %4, align 4
  %16 = add nsw i32 %15, 1
  store i32 %16, ptr %4, align 4
  br label %5, !llvm.loop !103

17:
  %18 = load float, ptr %3, align 4
  ret float %18
}

define internal void @round_groups(ptr noundef %0, i64 noundef %1, i64 noundef %2, i32 noundef %3) #3 {
  %5 = alloca ptr, align 8
  %6 = alloca i64, align 8
  %7 = alloca i64, align 8
  %8 = alloca i32, align 4
  %9 = alloca i64, align 8
  %10 = alloca i64, align 8
  %11 = alloca i64, align 8
  %12 = alloca i64, align 8
  %13 = alloca <8 x float>, align 32
  %14 = alloca i64, align 8
  %15 = alloca <8 x float>, align 32
  %16 = alloca float, align 4
  %17 = alloca float, align 4
  %18 = alloca <8 x i32>, align 32
  %19 = alloca i64, align 8
  %20 = alloca <8 x float>, align 32
  %21 = alloca <8 x i32>, align 32
  %22 = alloca <8 x i32>, align 32
  %23 = alloca <8 x i32>, align 32
  store ptr %0, ptr %5, align 8
  store i64 %1, ptr %6, align 8
  store i64 %2, ptr %7, align 8
  store i32 %3, ptr %8, align 4
  %24 = load ptr, ptr %5, align 8
  %25 = getelementptr inbounds nuw %struct.anon.1, ptr %24, i32 0, i32 4
  %26 = load i64, ptr %25, align 8
  store i64 %26, ptr %9, align 8
  %27 = load i64, ptr %6, align 8
  store i64 %27, ptr %10, align 8
  br label %28

28:
  %29 = load i64, ptr %10, align 8
  %30 = load i64, ptr %7, align 8
  %31 = icmp slt i64 %29, %30
  br i1 %31, label %32, label %150

32:
  %33 = load i64, ptr %10, align 8
  %34 = load i64, ptr %9, align 8
  %35 = mul nsw i64 %33, %34
  store i64 %35, ptr %11, align 8
  %36 = load i64, ptr %11, align 8
  %37 = load i64, ptr %9, align 8
  %38 = add nsw i64 %36, %37
  store i64 %38, ptr %12, align 8
  store <8 x float> zeroinitializer, ptr %13, align 32
  %39 = load i64, ptr %11, align 8
  store i64 %39, ptr %14, align 8
  br label %40

40:
  %41 = load i64, ptr %14, align 8
  %42 = load i64, ptr %12, align 8
  %43 = icmp slt i64 %41, %42
  br i1 %43, label %44, label %63

44:
  %45 = load ptr, ptr %5, align 8
  %46 = getelementptr inbounds nuw %struct.anon.1, ptr %45, i32 0, i32 0
  %47 = load ptr, ptr %46, align 8
  %48 = load i64, ptr %14, align 8
  %49 = getelementptr inbounds float, ptr %47, i64 %48
  %50 = call <8 x float> @read(ptr noundef %49) #13
  %51 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %50)
  store <8 x float> %51, ptr %15, align 32
  %52 = load <8 x float>, ptr %15, align 32
  %53 = load <8 x float>, ptr %13, align 32
  %54 = fcmp ogt <8 x float> %52, %53
  %55 = sext <8 x i1> %54 to <8 x i32>
  %56 = load <8 x float>, ptr %15, align 32
  %57 = load <8 x float>, ptr %13, align 32
  %58 = icmp slt <8 x i32> %55, zeroinitializer
  %59 = select <8 x i1> %58, <8 x float> %56, <8 x float> %57
  store <8 x float> %59, ptr %13, align 32
  br label %60

60:
  %61 = load i64, ptr %14, align 8
  %62 = add nsw i64 %61, 8
  store i64 %62, ptr %14, align 8
  br label %40, !llvm.loop !104

63:
  %64 = load <8 x float>, ptr %13, align 32
  %65 = call float @llvm.vector.reduce.fmax.v8f32(<8 x float> %64)
  store float %65, ptr %16, align 4
  %66 = load float, ptr %16, align 4
  %67 = fcmp ogt float %66, 0.000000e+00
  br i1 %67, label %68, label %71

68:
  %69 = load float, ptr %16, align 4
  %70 = fdiv float 1.270000e+02, %69
  br label %72

71:
  br label %72

72:
  %73 = phi float [ %70, %68 ], [ 0.000000e+00, %71 ]
  store float %73, ptr %17, align 4
  store <8 x i32> zeroinitializer, ptr %18, align 32
  %74 = load i64, ptr %11, align 8
  store i64 %74, ptr %19, align 8
  br label %75

75:
  %76 = load i64, ptr %19, align 8
  %77 = load i64, ptr %12, align 8
  %78 = icmp slt i64 %76, %77
  br i1 %78, label %79, label %131

79:
  %80 = load ptr, ptr %5, align 8
  %81 = getelementptr inbounds nuw %struct.anon.1, ptr %80, i32 0, i32 0
  %82 = load ptr, ptr %81, align 8
  %83 = load i64, ptr %19, align 8
  %84 = getelementptr inbounds float, ptr %82, i64 %83
  %85 = call <8 x float> @read(ptr noundef %84) #13
  %86 = load float, ptr %17, align 4
  %87 = insertelement <8 x float> poison, float %86, i64 0
  %88 = shufflevector <8 x float> %87, <8 x float> poison, <8 x i32> zeroinitializer
  %89 = fmul <8 x float> %85, %88
  store <8 x float> %89, ptr %20, align 32
  %90 = load <8 x float>, ptr %20, align 32
  %91 = call <8 x float> @llvm.rint.v8f32(<8 x float> %90)
  %92 = fptosi <8 x float> %91 to <8 x i32>
  store <8 x i32> %92, ptr %21, align 32
  %93 = load <8 x i32>, ptr %21, align 32
  %94 = load <8 x i32>, ptr %18, align 32
  %95 = add <8 x i32> %94, %93
  store <8 x i32> %95, ptr %18, align 32
  %96 = load i32, ptr %8, align 4
  %97 = call i64 @activation_bytes(i32 noundef %96) #13
  %98 = icmp eq i64 %97, 2
  br i1 %98, label %99, label %111

99:
  %100 = load <8 x i32>, ptr %21, align 32
  %101 = load <8 x i32>, ptr %21, align 32
  %102 = shufflevector <8 x i32> %100, <8 x i32> %101, <8 x i32> <i32 0, i32 2, i32 1, i32 3, i32 4, i32 6, i32 5, i32 7>
  store <8 x i32> %102, ptr %22, align 32
  %103 = load <8 x i32>, ptr %22, align 32
  %104 = trunc <8 x i32> %103 to <8 x i16>
  %105 = load ptr, ptr %5, align 8
  %106 = getelementptr inbounds nuw %struct.anon.1, ptr %105, i32 0, i32 1
  %107 = load ptr, ptr %106, align 8
  %108 = load i64, ptr %19, align 8
  %109 = mul nsw i64 2, %108
  %110 = getelementptr inbounds i8, ptr %107, i64 %109
  store <8 x i16> %104, ptr %110, align 1
  br label %127

111:
  %112 = load <8 x i32>, ptr %21, align 32
  store <8 x i32> %112, ptr %23, align 32
  %113 = load i32, ptr %8, align 4
  %114 = icmp eq i32 %113, 4
  br i1 %114, label %115, label %119

115:
  %116 = load <8 x i32>, ptr %21, align 32
  %117 = load <8 x i32>, ptr %21, align 32
  %118 = shufflevector <8 x i32> %116, <8 x i32> %117, <8 x i32> <i32 0, i32 2, i32 4, i32 6, i32 1, i32 3, i32 5, i32 7>
  store <8 x i32> %118, ptr %23, align 32
  br label %119

119:
  %120 = load <8 x i32>, ptr %23, align 32
  %121 = trunc <8 x i32> %120 to <8 x i8>
  %122 = load ptr, ptr %5, align 8
  %123 = getelementptr inbounds nuw %struct.anon.1, ptr %122, i32 0, i32 1
  %124 = load ptr, ptr %123, align 8
  %125 = load i64, ptr %19, align 8
  %126 = getelementptr inbounds i8, ptr %124, i64 %125
  store <8 x i8> %121, ptr %126, align 1
  br label %127

127:
  br label %128

128:
  %129 = load i64, ptr %19, align 8
  %130 = add nsw i64 %129, 8
  store i64 %130, ptr %19, align 8
  br label %75, !llvm.loop !105

131:
  %132 = load <8 x i32>, ptr %18, align 32
  %133 = call i32 @llvm.vector.reduce.add.v8i32(<8 x i32> %132)
  %134 = sitofp i32 %133 to float
  %135 = load ptr, ptr %5, align 8
  %136 = getelementptr inbounds nuw %struct.anon.1, ptr %135, i32 0, i32 3
  %137 = load ptr, ptr %136, align 8
  %138 = load i64, ptr %10, align 8
  %139 = getelementptr inbounds float, ptr %137, i64 %138
  store float %134, ptr %139, align 4
  %140 = load float, ptr %16, align 4
  %141 = fdiv float %140, 1.270000e+02
  %142 = load ptr, ptr %5, align 8
  %143 = getelementptr inbounds nuw %struct.anon.1, ptr %142, i32 0, i32 2
  %144 = load ptr, ptr %143, align 8
  %145 = load i64, ptr %10, align 8
  %146 = getelementptr inbounds float, ptr %144, i64 %145
  store float %141, ptr %146, align 4
  br label %147

147:
  %148 = load i64, ptr %10, align 8
  %149 = add nsw i64 %148, 1
  store i64 %149, ptr %10, align 8
  br label %28, !llvm.loop !106

150:
  ret void
}

declare <8 x float> @llvm.fabs.v8f32(<8 x float>) #6

declare i32 @llvm.vector.reduce.add.v8i32(<8 x i32>) #10

define internal <8 x float> @swish(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %2, align 32
  %3 = load <8 x float>, ptr %2, align 32
  %4 = load <8 x float>, ptr %2, align 32
  %5 = call <8 x float> @gated(<8 x float> noundef %3, <8 x float> noundef %4) #13
  ret <8 x float> %5
}

define internal <8 x float> @gated(<8 x float> noundef %0, <8 x float> noundef %1) #3 {
  %3 = alloca <8 x float>, align 32
  %4 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %3, align 32
  store <8 x float> %1, ptr %4, align 32
  %5 = load <8 x float>, ptr %3, align 32
  %6 = load <8 x float>, ptr %4, align 32
  %7 = fneg <8 x float> %6
  %8 = call <8 x float> @exponential(<8 x float> noundef %7) #13
  %9 = fadd <8 x float> splat (float 1.000000e+00), %8
  %10 = fdiv <8 x float> %5, %9
  ret <8 x float> %10
}

define internal <8 x float> @gelu(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %2, align 32
  %3 = load <8 x float>, ptr %2, align 32
  %4 = load <8 x float>, ptr %2, align 32
  %5 = load <8 x float>, ptr %2, align 32
  %6 = load <8 x float>, ptr %2, align 32
  %7 = fmul <8 x float> %5, %6
  %8 = load <8 x float>, ptr %2, align 32
  %9 = fmul <8 x float> %7, %8
  %10 = fmul <8 x float> %9, splat (float 0x3FA6E4E260000000)
  %11 = fadd <8 x float> %4, %10
  %12 = fmul <8 x float> %11, splat (float 0x3FF9884540000000)
  %13 = call <8 x float> @gated(<8 x float> noundef %3, <8 x float> noundef %12) #13
  ret <8 x float> %13
}

define internal <8 x float> @erf_gelu(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  %3 = alloca <8 x float>, align 32
  %4 = alloca <8 x float>, align 32
  %5 = alloca i32, align 4
  %6 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %2, align 32
  %7 = load <8 x float>, ptr %2, align 32
  %8 = call <8 x float> @llvm.fabs.v8f32(<8 x float> %7)
  %9 = fmul <8 x float> %8, splat (float 0x3FCDA67100000000)
  %10 = fadd <8 x float> %9, splat (float 1.000000e+00)
  %11 = fdiv <8 x float> splat (float 1.000000e+00), %10
  store <8 x float> %11, ptr %3, align 32
  store <8 x float> splat (float 0x3FF0FB8440000000), ptr %4, align 32
  store i32 0, ptr %5, align 4
  br label %12

12:
  %13 = load i32, ptr %5, align 4
  %14 = icmp slt i32 %13, 4
  br i1 %14, label %15, label %28

15:
  %16 = load <8 x float>, ptr %4, align 32
  %17 = load <8 x float>, ptr %3, align 32
  %18 = load i32, ptr %5, align 4
  %19 = sext i32 %18 to i64
  %20 = getelementptr inbounds [4 x float], ptr @erf_gelu.series, i64 0, i64 %19
  %21 = load float, ptr %20, align 4
  %22 = insertelement <8 x float> poison, float %21, i64 0
  %23 = shufflevector <8 x float> %22, <8 x float> poison, <8 x i32> zeroinitializer
  %24 = call <8 x float> @fused(<8 x float> noundef %16, <8 x float> noundef %17, <8 x float> noundef %23) #13
  store <8 x float> %24, ptr %4, align 32
  br label %25

25:
  %26 = load i32, ptr %5, align 4
  %27 = add nsw i32 %26, 1
  store i32 %27, ptr %5, align 4
  br label %12, !llvm.loop !107

28:
  %29 = load <8 x float>, ptr %4, align 32
  %30 = load <8 x float>, ptr %3, align 32
  %31 = fmul <8 x float> %29, %30
  %32 = load <8 x float>, ptr %2, align 32
  %33 = load <8 x float>, ptr %2, align 32
  %34 = fmul <8 x float> %32, %33
  %35 = fmul <8 x float> %34, splat (float -5.000000e-01)
  %36 = call <8 x float> @exponential(<8 x float> noundef %35) #13
  %37 = fmul <8 x float> %31, %36
  %38 = fmul <8 x float> %37, splat (float 5.000000e-01)
  store <8 x float> %38, ptr %6, align 32
  %39 = load <8 x float>, ptr %2, align 32
  %40 = load <8 x float>, ptr %2, align 32
  %41 = fcmp ogt <8 x float> %40, zeroinitializer
  %42 = sext <8 x i1> %41 to <8 x i32>
  %43 = load <8 x float>, ptr %6, align 32
  %44 = fsub <8 x float> splat (float 1.000000e+00), %43
  %45 = load <8 x float>, ptr %6, align 32
  %46 = icmp slt <8 x i32> %42, zeroinitializer
  %47 = select <8 x i1> %46, <8 x float> %44, <8 x float> %45
  %48 = fmul <8 x float> %39, %47
  ret <8 x float> %48
}

define internal <8 x float> @relu(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %2, align 32
  %3 = load <8 x float>, ptr %2, align 32
  %4 = fcmp ogt <8 x float> %3, zeroinitializer
  %5 = sext <8 x i1> %4 to <8 x i32>
  %6 = load <8 x float>, ptr %2, align 32
  %7 = icmp slt <8 x i32> %5, zeroinitializer
  %8 = select <8 x i1> %7, <8 x float> %6, <8 x float> zeroinitializer
  ret <8 x float> %8
}

define internal <8 x float> @square(<8 x float> noundef %0) #3 {
  %2 = alloca <8 x float>, align 32
  store <8 x float> %0, ptr %2, align 32
  %3 = load <8 x float>, ptr %2, align 32
  %4 = load <8 x float>, ptr %2, align 32
  %5 = fmul <8 x float> %3, %4
  ret <8 x float> %5
}

declare float @llvm.log.f32(float) #6

declare void @llvm.x86.sse2.pause() #11

declare float @llvm.sqrt.f32(float) #6

declare float @llvm.fma.f32(float, float, float) #6

declare void @llvm.memcpy.p0.p0.i64(ptr noalias writeonly captures(none), ptr noalias readonly captures(none), i64, i1 immarg) #12

attributes #0 = { noinline nounwind "min-legal-vector-width"="0" "no-builtins" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="haswell" "target-features"="+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fsgsbase,+fxsr,+invpcid,+lzcnt,+mmx,+movbe,+pclmul,+popcnt,+rdrnd,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+x87,+xsave,+xsaveopt" }
attributes #1 = { alwaysinline nounwind "min-legal-vector-width"="0" "no-builtins" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="haswell" "target-features"="+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fsgsbase,+fxsr,+invpcid,+lzcnt,+mmx,+movbe,+pclmul,+popcnt,+rdrnd,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+x87,+xsave,+xsaveopt" }
attributes #2 = { "no-builtins" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="haswell" "target-features"="+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fsgsbase,+fxsr,+invpcid,+lzcnt,+mmx,+movbe,+pclmul,+popcnt,+rdrnd,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+x87,+xsave,+xsaveopt" }
attributes #3 = { alwaysinline nounwind "min-legal-vector-width"="256" "no-builtins" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="haswell" "target-features"="+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fsgsbase,+fxsr,+invpcid,+lzcnt,+mmx,+movbe,+pclmul,+popcnt,+rdrnd,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+x87,+xsave,+xsaveopt" }
attributes #4 = { noinline nounwind "min-legal-vector-width"="256" "no-builtins" "no-trapping-math"="true" "stack-protector-buffer-size"="8" "target-cpu"="haswell" "target-features"="+avx,+avx2,+bmi,+bmi2,+cmov,+crc32,+cx16,+cx8,+f16c,+fma,+fsgsbase,+fxsr,+invpcid,+lzcnt,+mmx,+movbe,+pclmul,+popcnt,+rdrnd,+sahf,+sse,+sse2,+sse3,+sse4.1,+sse4.2,+ssse3,+x87,+xsave,+xsaveopt" }
attributes #5 = { nocallback nofree nosync nounwind willreturn memory(argmem: readwrite, inaccessiblemem: readwrite) }
attributes #6 = { nocallback nocreateundeforpoison nofree nosync nounwind speculatable willreturn memory(none) }
attributes #7 = { nocallback nofree nosync nounwind willreturn memory(none) }
attributes #8 = { nocallback nofree nosync nounwind willreturn }
attributes #9 = { nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #10 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #11 = { nounwind }
attributes #12 = { nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #13 = { nobuiltin "no-builtins" }
attributes #14 = { nounwind memory(none) }

!llvm.module.flags = !{!0, !1, !2}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 8, !"PIC Level", i32 2}
!2 = !{i32 7, !"PIE Level", i32 2}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.mustprogress"}
!5 = distinct !{!5, !4}
!6 = distinct !{!6, !4}
!7 = distinct !{!7, !4}
!8 = distinct !{!8, !4}
!9 = distinct !{!9, !4}
!10 = distinct !{!10, !4}
!11 = distinct !{!11, !4}
!12 = distinct !{!12, !4}
!13 = distinct !{!13, !4}
!14 = distinct !{!14, !4}
!15 = distinct !{!15, !4}
!16 = distinct !{!16, !4}
!17 = distinct !{!17, !4}
!18 = distinct !{!18, !4}
!19 = distinct !{!19, !4}
!20 = distinct !{!20, !4}
!21 = distinct !{!21, !4}
!22 = distinct !{!22, !4}
!23 = distinct !{!23, !4, !24}
!24 = !{!"llvm.loop.unroll.full"}
!25 = distinct !{!25, !4}
!26 = distinct !{!26, !4}
!27 = distinct !{!27, !4}
!28 = distinct !{!28, !4}
!29 = distinct !{!29, !4}
!30 = distinct !{!30, !4}
!31 = distinct !{!31, !4}
!32 = distinct !{!32, !4}
!33 = distinct !{!33, !4}
!34 = distinct !{!34, !4}
!35 = distinct !{!35, !4}
!36 = distinct !{!36, !4}
!37 = distinct !{!37, !4}
!38 = distinct !{!38, !4}
!39 = distinct !{!39, !4}
!40 = distinct !{!40, !4}
!41 = distinct !{!41, !4}
!42 = distinct !{!42, !4}
!43 = distinct !{!43, !4}
!44 = distinct !{!44, !4}
!45 = distinct !{!45, !4}
!46 = distinct !{!46, !4}
!47 = distinct !{!47, !4}
!48 = distinct !{!48, !4}
!49 = distinct !{!49, !4}
!50 = distinct !{!50, !4, !24}
!51 = distinct !{!51, !4, !24}
!52 = distinct !{!52, !4, !24}
!53 = distinct !{!53, !4, !24}
!54 = distinct !{!54, !4, !24}
!55 = distinct !{!55, !4, !24}
!56 = distinct !{!56, !4, !24}
!57 = distinct !{!57, !4, !24}
!58 = distinct !{!58, !4, !24}
!59 = distinct !{!59, !4, !24}
!60 = distinct !{!60, !4, !24}
!61 = distinct !{!61, !4}
!62 = distinct !{!62, !4, !24}
!63 = distinct !{!63, !4, !24}
!64 = distinct !{!64, !4}
!65 = distinct !{!65, !4, !24}
!66 = distinct !{!66, !4, !24}
!67 = !{i64 9760}
!68 = !{i64 9900}
!69 = distinct !{!69, !4}
!70 = distinct !{!70, !4}
!71 = distinct !{!71, !4}
!72 = distinct !{!72, !4}
!73 = distinct !{!73, !4}
!74 = distinct !{!74, !4}
!75 = distinct !{!75, !4}
!76 = distinct !{!76, !4}
!77 = distinct !{!77, !4}
!78 = distinct !{!78, !4}
!79 = distinct !{!79, !4}
!80 = distinct !{!80, !4, !24}
!81 = distinct !{!81, !4}
!82 = distinct !{!82, !4, !24}
!83 = distinct !{!83, !4, !24}
!84 = distinct !{!84, !4, !24}
!85 = distinct !{!85, !4, !24}
!86 = distinct !{!86, !4, !24}
!87 = distinct !{!87, !4}
!88 = distinct !{!88, !4, !24}
!89 = distinct !{!89, !4, !24}
!90 = distinct !{!90, !4, !24}
!91 = distinct !{!91, !4, !24}
!92 = distinct !{!92, !4, !24}
!93 = distinct !{!93, !4, !24}
!94 = distinct !{!94, !4, !24}
!95 = distinct !{!95, !4, !24}
!96 = distinct !{!96, !4, !24}
!97 = distinct !{!97, !4, !24}
!98 = distinct !{!98, !4, !24}
!99 = distinct !{!99, !4}
!100 = distinct !{!100, !4, !24}
!101 = distinct !{!101, !4, !24}
!102 = distinct !{!102, !4, !24}
!103 = distinct !{!103, !4, !24}
!104 = distinct !{!104, !4}
!105 = distinct !{!105, !4}
!106 = distinct !{!106, !4}
!107 = distinct !{!107, !4, !24}
